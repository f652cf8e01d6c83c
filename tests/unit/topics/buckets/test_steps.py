"""Which all-reduce of the trace carried which bucket, and when the bucket was ready for it."""

import pytest
from msgspec.structs import replace
from tables import backward_pass, collective, ddp_module, forward, recorded, trace

from ddpprof.model import UNKNOWN, CollectiveKind, DdpModule, Mark, Phase, RecordedStep
from ddpprof.topics.buckets.steps import BucketRow, BucketStep, measure_buckets, summarize_buckets

TWO = ddp_module((4, 4, 4), [[2, 1], [0]])
READY = recorded(ready={0: (40, 30, 25)})
"""forward until 10; bucket 0 is ready at 30, bucket 1 at 40"""


def times(rows: tuple[BucketStep, ...]) -> dict:
    return {(r.module, r.index): (r.launched_ns, r.started_ns, r.finished_ns) for r in rows}


def test_times_count_from_the_end_of_the_inner_forward() -> None:
    made = trace(comm=[collective(33, 50, launched=31), collective(50, 60, launched=41)])
    assert measure_buckets([TWO], READY, made) == (
        BucketStep(10, 0, 0, 10, 15, 20, 21, 23, 40, last_parameter=1, previous_ready_ns=15),
        BucketStep(10, 0, 1, 10, 30, 30, 31, 40, 50, last_parameter=0, previous_ready_ns=None),
    )


def test_the_record_and_the_trace_have_a_common_clock() -> None:
    step = recorded(forwards=(forward(1000, 1002, 1010, 1011),), ready={0: (1040, 1030, 1025)})
    made = trace(comm=[collective(33, 50, launched=31), collective(50, 60, launched=41)], epoch=1000)
    assert times(measure_buckets([TWO], step, made)) == {(0, 0): (21, 23, 40), (0, 1): (31, 40, 50)}


@pytest.mark.parametrize(
    "comm",
    [
        pytest.param([], id="none"),
        pytest.param([(33, 50)], id="too-few"),
        pytest.param([(33, 50), (50, 60), (60, 70)], id="too-many"),
    ],
)
def test_nothing_is_paired_where_the_numbers_differ(comm: list[tuple[int, int]]) -> None:
    rows = measure_buckets([TWO], READY, trace(comm=[collective(*span) for span in comm]))
    assert times(rows) == {(0, 0): (None, None, None), (0, 1): (None, None, None)}
    assert [row.ready_ns for row in rows] == [20, 30], "the record alone has that"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(collective(1, 9, Phase.FORWARD), id="launched-in-forward"),
        pytest.param(collective(70, 80, Phase.OTHER), id="the-user's-own"),
        pytest.param(collective(33, 40, kind=CollectiveKind.BROADCAST), id="broadcast"),
        pytest.param(collective(33, 40, step=1), id="of-another-step"),
        pytest.param(collective(33, 40, launched=-1), id="launch-not-known"),
    ],
)
def test_other_communication_is_not_a_bucket(other: dict[str, int]) -> None:
    made = trace(comm=[collective(33, 50, launched=31), other, collective(50, 60, launched=41)])
    assert times(measure_buckets([TWO], READY, made)) == {(0, 0): (21, 23, 40), (0, 1): (31, 40, 50)}


def test_where_no_launch_is_known_starts_are_in_order() -> None:
    made = trace(comm=[collective(50, 60, launched=UNKNOWN), collective(33, 50, launched=UNKNOWN)])
    assert times(measure_buckets([TWO], READY, made)) == {(0, 0): (None, 23, 40), (0, 1): (None, 40, 50)}


@pytest.mark.parametrize(
    ("settings", "num_reduces"),
    [
        pytest.param({}, 2, id="buckets"),
        pytest.param({"find_unused_parameters": True}, 3, id="and-the-map-of-used-parameters"),
    ],
)
def test_all_reduces_of_the_models_own_layers_are_no_buckets(settings: dict[str, bool], num_reduces: int) -> None:
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    hooks = [(Mark.BACKWARD, 30, 33, 0, 1), (Mark.BACKWARD, 40, 44, 0, 1)]
    launches = [31, 41, 43][:num_reduces]
    comm = [collective(at + 2, at + 9, launched=at) for at in (20, *launches)]
    module = ddp_module((4, 4, 4), [[2, 1], [0]], **settings)
    made = trace(comm=comm, host=hooks, names=("x", node))
    assert times(measure_buckets([module], READY, made)) == {(0, 0): (21, 23, 30), (0, 1): (31, 33, 40)}


def test_collectives_pair_by_launch_whatever_runs_first() -> None:
    made = trace(comm=[collective(60, 70, launched=31), collective(45, 59, launched=41)])
    assert times(measure_buckets([TWO], READY, made)) == {(0, 0): (21, 50, 60), (0, 1): (31, 35, 49)}


@pytest.mark.parametrize(
    ("settings", "num_reduces"),
    [
        pytest.param({}, 2, id="plain"),
        pytest.param({"find_unused_parameters": True}, 3, id="find-unused-also-reduces-its-map"),
        pytest.param({"find_unused_parameters": True, "static_graph": True}, 2, id="not-with-a-static-graph"),
    ],
)
def test_the_map_of_used_parameters_is_no_bucket(settings: dict[str, bool], num_reduces: int) -> None:
    comm = [collective(33, 50, launched=31), collective(50, 60, launched=41), collective(61, 62, launched=45)]
    rows = measure_buckets(
        [ddp_module((4, 4, 4), [[2, 1], [0]], **settings)], READY, trace(comm=comm[:num_reduces])
    )  # fmt: skip
    assert times(rows) == {(0, 0): (21, 23, 40), (0, 1): (31, 40, 50)}


def test_two_modules_whose_backward_passes_interleave() -> None:
    modules: list[DdpModule] = [TWO, ddp_module((4, 4), [[1], [0]])]
    step = recorded(
        forwards=(forward(0, 2, 10, 11), forward(11, 12, 20, 21, module=1)), ready={0: (60, 30, 25), 1: (50, 35)}
    )
    comm = [collective(t, t + 5, launched=t) for t in (31, 36, 51, 61)]
    assert times(measure_buckets(modules, step, trace(comm=comm))) == {
        (0, 0): (21, 21, 26), (1, 0): (16, 16, 21), (1, 1): (31, 31, 36), (0, 1): (51, 51, 56),
    }  # fmt: skip


def test_a_bucket_that_is_ready_early_waits_for_its_predecessor() -> None:
    step = recorded(ready={0: (20, 50, 45)})
    made = trace(comm=[collective(52, 60, launched=51), collective(60, 70, launched=53)])
    assert times(measure_buckets([TWO], step, made)) == {(0, 0): (41, 42, 50), (0, 1): (43, 50, 60)}


def test_light_recording_has_launch_and_finish() -> None:
    step = recorded(mode="light", ready={0: (40, 30, 25)}, buckets=[(0, 0, 31, 45), (0, 1, 41, None)])
    assert times(measure_buckets([TWO], step, None)) == {(0, 0): (21, None, 35), (0, 1): (31, None, None)}


def test_a_bucket_without_gradients_is_never_ready() -> None:
    rows = measure_buckets([TWO], recorded(ready={0: (None, 30, 25)}), None)
    assert [(row.first_ready_ns, row.ready_ns, row.last_parameter) for row in rows] == [(15, 20, 1), (None, None, None)]


@pytest.mark.parametrize(
    ("modules", "step"),
    [
        pytest.param([TWO], recorded(forwards=(forward(synchronizes=False),), ready={0: (40, 30, 25)}), id="no-sync"),
        pytest.param([], READY, id="module-not-described"),
        pytest.param([TWO], recorded(ready={0: (40,)}), id="another-number-of-parameters"),
    ],
)
def test_no_buckets(modules: list[DdpModule], step: RecordedStep) -> None:
    assert measure_buckets(modules, step, trace()) == ()


@pytest.mark.parametrize(
    ("number", "epoch"), [pytest.param(99, 0, id="step-not-in-the-trace"), pytest.param(10, None, id="no-common-clock")]
)
def test_a_trace_that_does_not_fit_the_record_is_not_paired(number: int, epoch: int | None) -> None:
    made = trace(comm=[collective(33, 50), collective(50, 60)], epoch=epoch)
    rows = measure_buckets([TWO], recorded(number, ready={0: (40, 30, 25)}), made)
    assert times(rows) == {(0, 0): (None, None, None), (0, 1): (None, None, None)}


def twice() -> RecordedStep:
    passes = (backward_pass((40, 30, 25)), backward_pass((80, 70, 65), origin=50))
    return recorded(forwards=(forward(), forward(45, 46, 50, 51)), passes=passes)


def test_every_backward_pass_of_a_step_has_its_buckets() -> None:
    made = trace(comm=[collective(t, t + 5, launched=t) for t in (31, 41, 71, 81)])
    rows = measure_buckets([TWO], twice(), made)
    assert [(row.pass_index, row.index, row.origin_ns, row.launched_ns) for row in rows] == [
        (0, 0, 10, 21), (0, 1, 10, 31), (1, 0, 50, 21), (1, 1, 50, 31),
    ]  # fmt: skip


def test_all_reduces_that_do_not_fit_all_passes_are_nobodys() -> None:
    made = trace(comm=[collective(t, t + 5, launched=t) for t in (31, 41)])
    assert {row.launched_ns for row in measure_buckets([TWO], twice(), made)} == {None}


MODULE = ddp_module((100, 20, 3), [[2, 1], [0]])


def row(step: int = 10, index: int = 0, origin: int = 0, **changes: int | None) -> BucketStep:
    given: dict = {
        "first_ready_ns": 5, "ready_ns": 20, "launched_ns": 21, "started_ns": 22, "finished_ns": 40,
        "last_parameter": 1, "previous_ready_ns": 5, **changes,
    }  # fmt: skip
    return BucketStep(step=step, module=0, index=index, origin_ns=origin, **given)


def test_one_row_is_its_own_median() -> None:
    assert summarize_buckets([MODULE], {0: [row()]}, one_clock=True) == (
        BucketRow(
            module=0, index=0, num_bytes=23, num_parameters=2, first_parameter="p2", last_parameter="p1",
            first_ready_ns=5, ready_ns=20, launched_ns=21, started_ns=22, finished_ns=40, transfer_ns=18,
            slowest_parameter="p1", slowest_parameter_delay_ns=15, late_rank=None, late_by_ns=None,
        ),
    )  # fmt: skip


def test_medians_are_over_steps_and_ranks() -> None:
    ranks = {0: [row(10, ready_ns=10), row(11, ready_ns=30)], 1: [row(10, ready_ns=20), row(11, ready_ns=None)]}
    (summary,) = summarize_buckets([MODULE], ranks, one_clock=True)
    assert summary.ready_ns == 20
    assert summary.slowest_parameter_delay_ns == 15


def test_buckets_come_in_order_and_what_was_not_observed_is_none() -> None:
    absent = row(index=1, ready_ns=None, previous_ready_ns=None, started_ns=None, last_parameter=None)
    first, second = summarize_buckets([MODULE], {0: [absent, row()]}, one_clock=True)
    assert (first.index, second.index, second.num_bytes) == (0, 1, 100)
    assert (second.ready_ns, second.transfer_ns, second.slowest_parameter, second.slowest_parameter_delay_ns) == (
        None, None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "transfer_ns"),
    [
        pytest.param({0: [(0, 50)], 1: [(40, 50)]}, 10, id="the-shortest-of-the-ranks"),
        pytest.param({0: [(0, 50), (0, 8)], 1: [(40, 50), (0, 30)]}, 9, id="median-over-steps"),
        pytest.param({0: [(None, 50)], 1: [(40, 50)]}, 10, id="of-the-ranks-that-say"),
        pytest.param({0: [(None, 50)], 1: [(40, None)]}, None, id="none-says"),
    ],
)
def test_transfer(spans: dict[int, list[tuple[int | None, int | None]]], transfer_ns: int | None) -> None:
    ranks = {
        rank: [row(10 + step, started_ns=start, finished_ns=end) for step, (start, end) in enumerate(times)]
        for rank, times in spans.items()
    }
    (summary,) = summarize_buckets([MODULE], ranks, one_clock=True)
    assert summary.transfer_ns == transfer_ns


LATE = {0: [row(10, launched_ns=20), row(11, launched_ns=20), row(12, launched_ns=90)],
        1: [row(10, launched_ns=50), row(11, launched_ns=70), row(12, launched_ns=20)]}  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "one_clock", "late"),
    [
        pytest.param(LATE, True, (1, 50), id="late-in-most-steps"),
        pytest.param(LATE, False, (None, None), id="no-common-clock"),
        pytest.param({0: LATE[0]}, True, (None, None), id="one-rank"),
        pytest.param({0: [row(launched_ns=None)], 1: [row()]}, True, (None, None), id="a-launch-is-missing"),
        pytest.param(
            {0: [row(origin=100, launched_ns=20)], 1: [row(origin=0, launched_ns=70)]}, True, (0, 50),
            id="by-the-clock-not-since-the-forward",
        ),
    ],
)  # fmt: skip
def test_the_late_rank(ranks: dict, one_clock: bool, late: tuple[int | None, int | None]) -> None:
    (summary,) = summarize_buckets([MODULE], ranks, one_clock)
    assert (summary.late_rank, summary.late_by_ns) == late


def test_no_rows_no_table() -> None:
    assert summarize_buckets([MODULE], {0: [], 1: []}, one_clock=True) == ()


def test_medians_are_over_all_backward_passes_of_a_step() -> None:
    rows = [row(step, pass_index=index, ready_ns=20 + index) for step in (10, 11) for index in (0, 1, 2)]
    (summary,) = summarize_buckets([MODULE], {0: rows}, one_clock=True)
    assert (summary.num_passes, summary.ready_ns) == (3, 21)


def test_ranks_are_compared_pass_by_pass() -> None:
    ranks = {
        0: [row(10, pass_index=0, launched_ns=20), row(10, pass_index=1, launched_ns=90)],
        1: [row(10, pass_index=0, launched_ns=24), row(10, pass_index=1, launched_ns=94)],
    }
    (summary,) = summarize_buckets([MODULE], ranks, one_clock=True)
    assert (summary.late_rank, summary.late_by_ns) == (1, 4)


def test_sparse_gradients_have_no_size() -> None:
    sparse = replace(MODULE, parameters=tuple(replace(one, is_sparse=True) for one in MODULE.parameters))
    (summary,) = summarize_buckets([sparse], {0: [row()]}, one_clock=True)
    assert summary.num_bytes is None
