"""The report of a Horovod timeline, from the file to the terminal."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from reports import HOSTILE, compare_runs
from shared import TRACES
from timelines import Event, cycle, negotiation, tensor, text, together

from ddpprof.engine.finding import Finding
from ddpprof.load.horovod_timeline import HorovodTimeline, TensorOp, load_horovod
from ddpprof.load.run import load_run
from ddpprof.render.json import read_report, render_json
from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections import sections
from ddpprof.render.terminal import render_terminal
from ddpprof.report import Report
from ddpprof.report.build import build_report
from ddpprof.topics.horovod import ReductionParts, find_horovod_steps, last_rank, summarize_horovod

STEP, NUM_STEPS = 10_000, 4


def built(tmp_path: Path, *events: Event) -> Report:
    path = tmp_path / "timeline.json"
    path.write_text(text(*events))
    return build_report(load_run(path))


def one_by_one(num_tensors: int = 6, agreed: int = 100, comm: int = 300, cycles: int = 0) -> list[Event]:
    """Tensors that are announced together, agreed upon `agreed` µs later, and reduced one after the other."""
    events = [event for pid in range(1, num_tensors + 1) for event in tensor(pid, f"t{pid}")]
    events += [cycle(at) for at in range(0, STEP * NUM_STEPS, cycles)] if cycles else []
    for start in range(0, STEP * NUM_STEPS, STEP):
        for pid in range(1, num_tensors + 1):
            events += negotiation(pid, start, start + agreed)
        for pid in range(1, num_tensors + 1):
            begins = start + agreed + (pid - 1) * comm
            events += together([pid], begins, [("GLOO_ALLREDUCE", begins, begins + comm)], begins + comm)
    return events


def ticking(late: Sequence[Mapping[int, int]]) -> list[Event]:
    """One tensor; of each step, when which rank had it."""
    events = tensor(1, "t")
    for index, ranks in enumerate(late):
        start = index * STEP
        ticks = {rank: start + time for rank, time in ranks.items()}
        end = max(ticks.values()) + 1
        events += negotiation(1, start, end, ticks=ticks)
        events += together([1], end, [("NCCL_ALLREDUCE", end, end + 100)], end + 100)
    return events


def found(report: Report) -> dict[str, Finding]:
    return {finding.rule: finding for finding in report.findings}


def test_the_job_and_its_steps(tmp_path: Path) -> None:
    report = built(tmp_path, *one_by_one())
    assert (report.job.name, report.job.backend, report.job.world_size) == ("timeline.json", "gloo", None)
    assert [step.duration_ns for step in report.ranks[0].light_steps] == [STEP * 1000] * (NUM_STEPS - 1)
    assert report.across is None
    assert any("contains no computation" in text for text in report.missing)


def test_waiting_for_the_next_cycle(tmp_path: Path) -> None:
    finding = found(built(tmp_path, *one_by_one(agreed=2900, cycles=1000)))["horovod-cycle"]
    assert finding.gain_ns == 2_900_000
    assert "a cycle takes 1.00 ms" in finding.evidence
    assert "horovod-cycle" not in found(built(tmp_path, *one_by_one(agreed=1400, cycles=500)))


def test_waiting_for_a_rank_that_the_timeline_does_not_name(tmp_path: Path) -> None:
    finding = found(built(tmp_path, *one_by_one(agreed=5000)))["horovod-straggler"]
    assert finding.gain_ns == 5_000_000
    assert "for other ranks" in finding.title
    assert "HOROVOD_CACHE_CAPACITY=0" in finding.evidence


def test_a_straggler_by_its_number(tmp_path: Path) -> None:
    report = built(tmp_path, *ticking([{0: 0, 1: 1, 2: 9000}, *[{0: 1000, 2: 1001, 1: 6000}] * 4]))
    finding = found(report)["horovod-straggler"]
    assert finding.title == "Rank 0 waits 5.00 ms per step for rank 1, after its own gradients are ready"
    assert "rank 1 was last for 4 of the 4 tensors" in finding.evidence
    assert report.job.world_size == 3


def test_no_rank_is_blamed_for_the_start(tmp_path: Path) -> None:
    cached = one_by_one(1, agreed=5000)
    first = ticking([{0: 0, 2: 1, 1: 5000}])
    renamed = [{**event, "ts": event["ts"] + STEP} if "ts" in event else event for event in cached]
    finding = found(built(tmp_path, *[e for e in first if e["ph"] != "M"], *renamed))["horovod-straggler"]
    assert "for other ranks" in finding.title


def test_nothing_is_said_where_rank_0_is_the_last(tmp_path: Path) -> None:
    assert found(built(tmp_path, *ticking([{1: 0, 0: 6000}] * 4))) == {}


def test_without_steps_it_says_why(tmp_path: Path) -> None:
    report = built(tmp_path, *tensor(1, "t"), *negotiation(1, 0, 5), *together([1], 5, [("MPI_ALLREDUCE", 5, 9)], 9))
    assert report.findings == ()
    assert any("no tensor is reduced twice" in text for text in report.missing)


def drawn(report: Report, width: int = 80) -> str:
    file = io.StringIO()
    render_terminal(sections(report), file, width)
    return file.getvalue()


def test_it_is_drawn(tmp_path: Path) -> None:
    shown = drawn(built(tmp_path, *one_by_one()))
    assert "Horovod timeline · 3 steps" in shown.replace("\n", " ")
    median = next(line for line in shown.splitlines() if line.startswith("median"))
    assert median.split() == ["median", "10.00", "1.90", "1.80", "0.00", "0.00", "0.10", "0.00", "1.90"]
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    hostile = HOSTILE[name].encode("utf-8", "replace").decode()
    path.write_text(text(*one_by_one(1)).replace('"t1"', json.dumps(hostile)))
    report = build_report(load_run(path))
    shown = drawn(report)
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "<script>" not in render_markdown("x", sections(report))


def test_the_json_report_is_read_back_and_compared(tmp_path: Path) -> None:
    a, b = built(tmp_path, *one_by_one()), built(tmp_path, *one_by_one(comm=200))
    path = tmp_path / "report.json"
    path.write_text(render_json(a))
    assert read_report(path) == a
    changes = [(change.metric, change.a_ns, change.b_ns) for change in compare_runs(a, b).metrics]
    assert changes == [("step", STEP * 1000, STEP * 1000), ("fastest step", STEP * 1000, STEP * 1000)]


def test_in_a_folder_of_traces_it_is_skipped_by_name(tmp_path: Path) -> None:
    built(tmp_path, *one_by_one())
    of_step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 5, "pid": 1, "tid": 1}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [of_step]}))
    missing = build_report(load_run(tmp_path)).missing
    assert any("a Horovod timeline. To read it, give only its path" in text for text in missing)


TIMELINE = TRACES / "horovod_timeline_2ranks.json"
US = 1000


def op(
    tensor: str,
    announced: int,
    agreed: int,
    comm: tuple[int, int],
    end: int,
    ready: Mapping[int, int] | None = None,
    is_reduction: bool = True,
    copies: bool = False,
) -> TensorOp:
    """It begins 1 µs after all ranks agreed; copies fill what is left before and after the collective."""
    around = [(agreed + 1, comm[0]), (comm[1], end)] if copies else []
    return TensorOp(
        tensor=tensor, is_reduction=is_reduction, negotiated=(announced * US, agreed * US),
        ready_ns={rank: time * US for rank, time in (ready or {}).items()},
        start_ns=(agreed + 1) * US, end_ns=end * US,
        copies=[(start * US, end * US) for start, end in around], collectives=[(comm[0] * US, comm[1] * US)],
    )  # fmt: skip


def timeline(*ops: TensorOp, cycles: Sequence[int] = ()) -> HorovodTimeline:
    ordered = tuple(sorted(ops, key=lambda one: one.start_ns))
    return HorovodTimeline("gloo", 2, ordered, tuple(time * US for time in cycles))


def parts(*us: int) -> ReductionParts:
    return ReductionParts(*(one * US for one in us))


def two_steps() -> HorovodTimeline:
    """Step 0: `a` alone 11-20, `b` and `c` fused; step 1 the same, 100 later, but all alone."""
    return timeline(
        op("broadcast.a", 0, 1, (2, 3), 3, is_reduction=False),
        op("a", 5, 10, (12, 20), 20),
        op("b", 8, 24, (30, 50), 55, copies=True),
        op("c", 22, 24, (30, 50), 55, copies=True),
        op("a", 105, 110, (111, 121), 121),
        op("b", 106, 130, (131, 135), 135),
        op("c", 107, 136, (137, 140), 140),
        cycles=(4, 9, 14, 19),
    )


def test_steps_follow_the_repetition_of_the_gradients() -> None:
    steps = find_horovod_steps(two_steps())
    assert [(step.start_ns, step.end_ns) for step in steps] == [(5000, 105_000), (105_000, None)]
    assert [[one.tensor for one in step.ops] for step in steps] == [["a", "b", "c"]] * 2


def test_the_parts_of_a_reduction_add_up() -> None:
    first, second = summarize_horovod(two_steps()).steps
    # comm 12-20, 30-50; copies 25-30, 50-55; other 11-12; waiting 5-11 and 20-24; nothing 24-25
    assert first.reduction == parts(28, 10, 1, 10, 1)
    assert first.reduction.total_ns == 50 * US
    assert first.trailing == parts(20, 10, 0, 2, 1)  # from 22, where c is announced
    assert (first.duration_ns, second.duration_ns, first.num_tensors) == (100_000, None, 3)


def test_rank_0_is_done_when_its_own_tick_says_so() -> None:
    ops = [op("a", 10, 50, (51, 60), 60, ready={1: 10, 0: 50}), op("a", 100, 101, (102, 103), 103)]
    assert summarize_horovod(timeline(*ops)).steps[0].trailing == parts(9, 0, 0, 0, 1)


def test_a_timeline_that_ends_in_a_step_leaves_it_out() -> None:
    ops = [op(name, at, at + 1, (at + 2, at + 3), at + 3) for at in (10, 20, 30) for name in "ab"][:-1]
    summary = summarize_horovod(timeline(*ops))
    assert [step.duration_ns for step in summary.steps] == [10_000, 10_000]


def test_a_tensor_that_is_reduced_now_and_then_belongs_to_the_step_around_it() -> None:
    ops = [op("a", at, at + 1, (at + 2, at + 3), at + 3) for at in (10, 20, 30)]
    summary = summarize_horovod(timeline(*ops, op("metric", 25, 26, (27, 28), 28)))
    assert [step.num_tensors for step in summary.steps] == [1, 2, 1]


def test_without_names_there_are_no_steps() -> None:
    summary = summarize_horovod(timeline(op("noname.1", 1, 2, (3, 4), 4), op("noname.2", 5, 6, (7, 8), 8)))
    assert (summary.steps, summary.cycle_ns) == ((), None)


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


def test_who_came_last_how_often_without_the_first_step() -> None:
    made = timeline(
        op("a", 10, 30, (31, 32), 32, ready={0: 10, 1: 30}),
        op("b", 20, 40, (41, 42), 42, ready={0: 20, 1: 40}),
        op("a", 110, 120, (121, 122), 122, ready={1: 110, 0: 120}),
        op("b", 111, 121, (122, 123), 123, ready={0: 119}),
        cycles=range(0, 200, 5),
    )
    assert summarize_horovod(made).num_last == {0: 1}
    assert summarize_horovod(replace(made, world_size=3)).num_last == {}


@pytest.mark.skipif(not TIMELINE.exists(), reason="the traces of others are not part of the project: no ../shared")
def test_a_real_timeline() -> None:
    """The numbers are those of an independent script that counts every microsecond."""
    summary = summarize_horovod(load_horovod(TIMELINE))
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
    assert summary.cycle_ns == 1_073_000


def test_a_broadcast_under_the_name_of_a_reduced_tensor_is_none_of_its_reductions() -> None:
    more = (
        op("a", 205, 210, (211, 221), 221, is_reduction=False),
        op("loss", 206, 211, (212, 222), 222),
    )
    steps = find_horovod_steps(timeline(*two_steps().ops, *more))
    assert [[one.tensor for one in step.ops] for step in steps] == [["a", "b", "c"], ["a", "b", "c", "loss"]]
