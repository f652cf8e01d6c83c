"""What a Horovod timeline tells of steps, tensors, fused groups and late ranks. Times are µs made ns."""

from collections.abc import Mapping, Sequence

import pytest
from shared import TRACES

from ddpprof.model import CollectiveKind
from ddpprof.topics.horovod.reductions import ReductionParts, find_horovod_steps, summarise_horovod
from ddpprof.topics.horovod.timeline import ActivityKind, HorovodTimeline, TensorOp, TimelineActivity
from ddpprof.topics.horovod.timeline_file import load_horovod
from ddpprof.topics.horovod.waiting import last_rank, summarise_tick_waiting

TIMELINE = TRACES / "horovod_timeline_2ranks.json"
US = 1000


def op(
    tensor: str,
    announced: int,
    agreed: int,
    comm: tuple[int, int],
    end: int,
    group: int = 0,
    ready: Mapping[int, int] | None = None,
    num_bytes: int | None = 4000,
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    copies: bool = False,
) -> TensorOp:
    """It begins 1 µs after all ranks agreed; copies fill what is left before and after the collective."""
    activities = [TimelineActivity(ActivityKind.COLLECTIVE, comm[0] * US, comm[1] * US)]
    if copies:
        activities += [
            TimelineActivity(ActivityKind.COPY_IN, (agreed + 1) * US, comm[0] * US),
            TimelineActivity(ActivityKind.COPY_OUT, comm[1] * US, end * US),
        ]
    return TensorOp(
        tensor=tensor, kind=kind, group=group, negotiated_from_ns=announced * US, negotiated_ns=agreed * US,
        start_ns=(agreed + 1) * US, end_ns=end * US, activities=tuple(activities), num_bytes=num_bytes,
        ready_ns={rank: time * US for rank, time in (ready or {}).items()},
    )  # fmt: skip


def timeline(*ops: TensorOp, cycles: Sequence[int] = ()) -> HorovodTimeline:
    ordered = tuple(sorted(ops, key=lambda one: one.start_ns))
    return HorovodTimeline("gloo", 2, ordered, tuple(time * US for time in cycles))


def parts(*us: int) -> ReductionParts:
    return ReductionParts(*(one * US for one in us))


def two_steps() -> HorovodTimeline:
    """Step 0: `a` alone 11-20, `b` and `c` fused; step 1 the same, 100 later, but all alone."""
    return timeline(
        op("broadcast.a", 0, 1, (2, 3), 3, group=90, kind=CollectiveKind.BROADCAST),
        op("a", 5, 10, (12, 20), 20, group=0),
        op("b", 8, 24, (30, 50), 55, group=1, copies=True),
        op("c", 22, 24, (30, 50), 55, group=1, copies=True),
        op("a", 105, 110, (111, 121), 121, group=2),
        op("b", 106, 130, (131, 135), 135, group=3),
        op("c", 107, 136, (137, 140), 140, group=4),
        cycles=(4, 9, 14, 19),
    )


def test_steps_follow_the_repetition_of_the_gradients() -> None:
    steps = find_horovod_steps(two_steps())
    assert [(step.start_ns, step.end_ns) for step in steps] == [(5000, 105_000), (105_000, None)]
    assert [[one.tensor for one in step.ops] for step in steps] == [["a", "b", "c"]] * 2


def test_the_parts_of_a_reduction_add_up() -> None:
    first, second = summarise_horovod(two_steps()).steps
    # comm 12-20, 30-50; copies 25-30, 50-55; other 11-12; waiting 5-11 and 20-24; nothing 24-25
    assert first.reduction == parts(28, 10, 1, 10, 1)
    assert first.reduction.total_ns == 50 * US
    assert first.trailing == parts(20, 10, 0, 2, 1)  # from 22, where c is announced
    assert (first.duration_ns, second.duration_ns) == (100_000, None)
    assert (first.num_tensors, first.num_collectives, first.num_alone, first.num_bytes) == (3, 2, 1, 12_000)
    assert (second.num_collectives, second.num_alone, second.alone_ns, second.longest_alone_ns) == (
        3,
        3,
        17_000,
        10_000,
    )


def test_rank_0_is_done_when_its_own_tick_says_so() -> None:
    ops = [op("a", 10, 50, (51, 60), 60, ready={1: 10, 0: 50}), op("a", 100, 101, (102, 103), 103)]
    assert summarise_horovod(timeline(*ops)).steps[0].trailing == parts(9, 0, 0, 0, 1)


def test_tensors() -> None:
    a, b, c = summarise_horovod(two_steps()).tensors
    assert (a.tensor, a.kind, a.num_bytes, a.num_steps, a.num_fused) == ("a", "all_reduce", 4000, 2, 1)
    assert (a.announced_ns, a.negotiation_ns, a.waiting_ns, a.queue_ns) == (0, 5000, 5000, 1500)
    assert (b.negotiation_ns, b.waiting_ns, b.copy_ns, b.collective_ns) == (20_000, 10_500, 5000, 12_000)
    assert c.num_fused == 2  # 2 and 1: the half is rounded to the even number


def test_groups_and_what_stands_beside_the_steps() -> None:
    summary = summarise_horovod(two_steps())
    assert [(group.tensors, group.num_steps) for group in summary.groups] == [
        (("a",), 2), (("b", "c"), 1), (("b",), 1), (("c",), 1),
    ]  # fmt: skip
    fused = summary.groups[1]
    assert (fused.num_bytes, fused.started_ns, fused.copy_ns, fused.collective_ns) == (8000, 20_000, 10_000, 20_000)
    assert (fused.algbw_bytes_per_s, fused.busbw_bytes_per_s) == (4e8, 4e8)
    assert [(other.kind, other.num_calls, other.collective_ns) for other in summary.others] == [("broadcast", 1, 1000)]
    assert summary.cycle_ns == 5000


def test_a_timeline_that_ends_in_a_step_leaves_it_out() -> None:
    ops = [op(name, at, at + 1, (at + 2, at + 3), at + 3) for at in (10, 20, 30) for name in "ab"][:-1]
    summary = summarise_horovod(timeline(*ops))
    assert [step.duration_ns for step in summary.steps] == [10_000, 10_000]
    assert [tensor.num_steps for tensor in summary.tensors] == [2, 2]


def test_a_tensor_that_is_reduced_now_and_then_belongs_to_the_step_around_it() -> None:
    ops = [op("a", at, at + 1, (at + 2, at + 3), at + 3, group=at) for at in (10, 20, 30)]
    summary = summarise_horovod(timeline(*ops, op("metric", 25, 26, (27, 28), 28, group=1)))
    assert [step.num_tensors for step in summary.steps] == [1, 2, 1]


def test_without_names_there_are_no_steps() -> None:
    summary = summarise_horovod(timeline(op("noname.1", 1, 2, (3, 4), 4), op("noname.2", 5, 6, (7, 8), 8)))
    assert (summary.steps, summary.tensors, summary.groups) == ((), (), ())
    assert [(other.kind, other.collective_ns) for other in summary.others] == [("all_reduce", 2000)]


@pytest.mark.parametrize(
    ("ready", "cycles", "last"),
    [
        pytest.param({0: 10, 1: 11, 2: 900}, (5, 800), 2, id="a-cycle-later"),
        pytest.param({0: 10, 1: 11, 2: 12}, (5, 800), None, id="all-in-one-cycle"),
        pytest.param({0: 10, 1: 900, 2: 901}, (5, 800), None, id="two-in-the-last-cycle"),
        pytest.param({1: 10, 0: 900}, (5, 800), 0, id="rank-0"),
        pytest.param({0: 10, 1: 509}, (), None, id="unmarked-and-close"),
        pytest.param({0: 10, 1: 510}, (), 1, id="unmarked-and-apart"),
    ],
)
def test_who_came_last(ready: dict[int, int], cycles: tuple[int, ...], last: int | None) -> None:
    assert last_rank(op("a", 0, 1, (2, 3), 3, ready=ready), [time * US for time in cycles]) == last


def test_waiting_by_ticks() -> None:
    steps = find_horovod_steps(
        timeline(
            op("a", 10, 30, (31, 32), 32, ready={0: 10, 1: 30}),
            op("b", 20, 40, (41, 42), 42, ready={0: 20, 1: 40}),
            op("a", 110, 120, (121, 122), 122, ready={1: 110, 0: 120}),
            op("b", 111, 121, (122, 123), 123, ready={0: 119}),
        )
    )
    zero, one = summarise_tick_waiting(steps, [time * US for time in range(0, 200, 5)], 2)
    assert (zero.rank, zero.num_collectives, zero.num_last, zero.total_waiting_ns) == (0, 3, 1, 40_000)
    assert (zero.median_waiting_ns, zero.waiting_per_step_ns) == (20_000, 15_000)  # of 30 and 0: 10-40, and none
    assert (one.num_last, one.total_waiting_ns) == (2, 10_000)
    assert summarise_tick_waiting(steps, (), 3) == ()


@pytest.mark.skipif(not TIMELINE.exists(), reason="the traces of others are not part of the project: no ../shared")
def test_a_real_timeline() -> None:
    """The numbers are those of an independent script that counts every microsecond."""
    summary = summarise_horovod(load_horovod(TIMELINE))
    assert [step.reduction for step in summary.steps] == [
        parts(19613, 1618, 490, 48842, 206), parts(18064, 346, 336, 2700, 10), parts(10519, 323, 390, 8048, 9),
        parts(17782, 349, 356, 8988, 13), parts(27036, 325, 389, 15879, 8), parts(7761, 353, 750, 2094, 2538),
    ]  # fmt: skip
    assert [step.trailing for step in summary.steps] == [
        parts(19613, 1618, 490, 35990, 206), parts(5579, 338, 318, 266, 10), parts(6879, 317, 373, 172, 9),
        parts(17782, 349, 356, 1000, 13), parts(27036, 325, 389, 3880, 8), parts(325, 14, 14, 2082, 14),
    ]  # fmt: skip
    durations = [None if step.duration_ns is None else step.duration_ns // US for step in summary.steps]
    assert durations == [82938, 36829, 27985, 35996, 55582, None]
    assert [step.num_collectives for step in summary.steps] == [3, 3, 3, 3, 3, 2]
    assert {step.num_bytes for step in summary.steps} == {4_280_872}
    assert (summary.num_reductions, summary.num_with_ranks, summary.cycle_ns) == (48, 8, 1_073_000)
    assert len(summary.groups[0].tensors) == 4
    assert summary.groups[0].num_steps == 5


def test_a_broadcast_under_the_name_of_a_reduced_tensor_is_none_of_its_reductions() -> None:
    more = (
        op("a", 205, 210, (211, 221), 221, group=5, kind=CollectiveKind.BROADCAST),
        op("loss", 206, 211, (212, 222), 222, group=6),
    )
    steps = find_horovod_steps(timeline(*two_steps().ops, *more))
    assert [[one.tensor for one in step.ops] for step in steps] == [["a", "b", "c"], ["a", "b", "c", "loss"]]
