"""Buckets from traces alone: by order of launch and size, where ddpprof recorded nothing."""

from dataclasses import replace
from typing import Any

import pytest
from shared import TRACES
from tables import collective, trace

from ddpprof.load.rank import load_trace
from ddpprof.model import UNKNOWN, CollectiveKind, Mark, Phase, Trace
from ddpprof.topics.buckets import traced
from ddpprof.topics.buckets.steps import BucketRow

NAMES = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    "autograd::engine::evaluate_function: SyncBatchNormBackward",
    "ncclDevKernel_AllReduce_Sum_u32_RING_LL(ncclDevComm*)",
)
F32, HOOK, OTHER_NODE, U32 = range(4)
MIB = 1 << 20


def reduce_at(step: int, time: int, num_bytes: int = MIB, **changes: Any) -> dict[str, int]:
    """Launched at a time of the step, started 10 later, finished 30 later."""
    launched = 1000 * step + time
    start = launched + changes.pop("delay", 10)
    return collective(start, start + 20, step=step, launched=launched, num_bytes=num_bytes, **changes)


def made(steps: dict[int, list[tuple[int, int]]], **changes: Any) -> Trace:
    """Per step, time and size of its all-reduces. Forward until 100, every launch in a hook of its own."""
    comm = [reduce_at(step, *one) for step, all_of_it in steps.items() for one in all_of_it]
    comm += changes.pop("comm", [])
    host = [(Mark.FORWARD, 1000 * step, 1000 * step + 100, step) for step in steps]
    host += [(Mark.BACKWARD, c["launched"] - 1, c["launched"] + 1, c["step"], HOOK) for c in comm]
    host = changes.pop("host", host)
    spans = [(1000 * step, 1000 * step + 1000) for step in range(max(steps) + 1)]
    return trace(steps=spans, comm=comm, host=host, device="gpu", names=NAMES, **changes)


TWO = [(150, MIB), (250, 2 * MIB)]


def row(index: int, num_bytes: int | None, launched: int, **changes: Any) -> BucketRow:
    given = {"started_ns": launched + 10, "finished_ns": launched + 30, "transfer_ns": 20, "late_rank": None,
             "late_by_ns": None, **changes}  # fmt: skip
    return BucketRow(
        module=0, index=index, num_bytes=num_bytes, num_parameters=None, first_parameter=None, last_parameter=None,
        first_ready_ns=None, ready_ns=None, launched_ns=launched, slowest_parameter=None,
        slowest_parameter_delay_ns=None, **given,
    )  # fmt: skip


def trace_buckets(traces: dict[int, Trace], one_clock: bool) -> Any:
    return traced.trace_buckets({r: traced.find_passes(t) for r, t in traces.items()}, one_clock)


def sizes(found: Any) -> list[int | None]:
    return [bucket.num_bytes for bucket in found.buckets]


def test_all_reduces_are_buckets_in_the_order_of_launch() -> None:
    found = trace_buckets({0: made({0: TWO, 1: TWO})}, one_clock=True)
    assert found.buckets == (row(0, MIB, 50), row(1, 2 * MIB, 150))
    assert found.notes == ()


def test_launch_decides_whatever_runs_first() -> None:
    comm = [reduce_at(0, 150, 8, delay=300), reduce_at(0, 250, 16)]
    assert sizes(trace_buckets({0: made({0: []}, comm=comm)}, one_clock=True)) == [8, 16]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(reduce_at(0, 400, kind=CollectiveKind.BROADCAST), id="broadcast"),
        pytest.param(reduce_at(0, 50, phase=Phase.FORWARD), id="in-the-forward"),
        pytest.param(reduce_at(0, 400, phase=Phase.OTHER), id="the-user's-own"),
        pytest.param(reduce_at(0, 400, name=U32), id="map-of-used-parameters"),
        pytest.param({**reduce_at(0, 400), "launched": UNKNOWN}, id="launch-unknown"),
        pytest.param({**reduce_at(0, 400), "step": -1}, id="of-no-step"),
    ],
)
def test_other_communication_is_no_bucket(other: dict[str, int]) -> None:
    assert sizes(trace_buckets({0: made({0: TWO}, comm=[other])}, one_clock=True)) == [MIB, 2 * MIB]


def test_where_no_launch_is_known_starts_are_in_order() -> None:
    comm = [{**reduce_at(0, *one), "launched": UNKNOWN} for one in TWO]
    found = trace_buckets({0: made({0: []}, comm=comm)}, one_clock=True)
    assert found.buckets == tuple(
        replace(row(index, num_bytes, 150 + 100 * index - 100), launched_ns=None)
        for index, (_, num_bytes) in enumerate(TWO)
    )


def test_an_all_reduce_of_another_autograd_node_is_no_bucket() -> None:
    host = [(Mark.FORWARD, 0, 100, 0), (Mark.BACKWARD, 140, 160, 0, HOOK), (Mark.BACKWARD, 240, 260, 0, OTHER_NODE)]
    assert sizes(trace_buckets({0: made({0: TWO}, host=host)}, one_clock=True)) == [MIB]


def test_without_autograds_nodes_all_of_the_backward_pass_counts() -> None:
    host = [(Mark.FORWARD, 0, 100, 0)]
    assert sizes(trace_buckets({0: made({0: TWO}, host=host)}, one_clock=True)) == [MIB, 2 * MIB]


def test_times_count_from_the_last_forward_before_the_first_bucket() -> None:
    host = [(Mark.FORWARD, 0, 60, 0), (Mark.FORWARD, 70, 120, 0), (Mark.FORWARD, 300, 400, 0)]
    found = trace_buckets({0: made({0: TWO}, host=host)}, one_clock=True)
    assert [bucket.launched_ns for bucket in found.buckets] == [30, 130]


def test_steps_with_other_buckets_are_left_out_and_named() -> None:
    found = trace_buckets({0: made({0: [(150, 3 * MIB)], 1: TWO, 2: TWO})}, one_clock=True)
    assert found.buckets == (row(0, MIB, 50), row(1, 2 * MIB, 150))
    (note,) = found.notes
    assert note.startswith("the bucket table leaves out step 10: ")


def test_ranks_with_other_buckets_in_a_step_are_named() -> None:
    odd, usual = made({0: [(150, 7)], 1: TWO}), made({0: TWO, 1: TWO})
    found = trace_buckets({0: odd, 1: usual, 2: odd}, one_clock=True)
    assert sizes(found) == [MIB, 2 * MIB]
    assert found.notes[0].startswith("the bucket table leaves out step 10 of ranks 0, 2: ")


def test_of_two_layouts_as_common_the_later_counts() -> None:
    assert sizes(trace_buckets({0: made({0: [(150, 5)], 1: TWO})}, one_clock=True)) == [MIB, 2 * MIB]


def test_unknown_sizes_fit_any() -> None:
    steps = {0: [(150, UNKNOWN), (250, UNKNOWN)], 1: [(150, 8), (250, UNKNOWN)], 2: [(150, UNKNOWN)]}
    found = trace_buckets({0: made(steps)}, one_clock=True)
    assert sizes(found) == [8, None]
    assert [note.split(":")[0] for note in found.notes] == ["the bucket table leaves out step 12"]


def test_steps_without_gradient_communication_have_nothing_to_leave_out() -> None:
    assert trace_buckets({0: made({0: TWO, 1: []})}, one_clock=True).notes == ()


def test_several_backward_passes_in_a_step_are_one_list_and_named() -> None:
    host = [(Mark.FORWARD, 0, 100, 0), (Mark.FORWARD, 180, 200, 0)]
    found = trace_buckets({0: made({0: TWO}, host=host)}, one_clock=True)
    assert sizes(found) == [MIB, 2 * MIB]
    assert found.notes == (
        "the bucket table shows the buckets of all backward passes of a step as if they belonged to one module",
    )


def test_ranks_tell_transfer_and_the_late_one() -> None:
    early = made({0: []}, comm=[reduce_at(0, 150)])
    late = made({0: []}, comm=[{**reduce_at(0, 155), "end": 1000}])
    (bucket,) = trace_buckets({0: early, 1: late}, one_clock=True).buckets
    assert (bucket.transfer_ns, bucket.late_rank, bucket.late_by_ns) == (20, 1, 5)


@pytest.mark.parametrize(
    ("epoch", "one_clock"), [pytest.param(None, True, id="one-epoch-unknown"), pytest.param(0, False, id="two-hosts")]
)
def test_without_a_common_clock_no_rank_is_late(epoch: int | None, one_clock: bool) -> None:
    (first, _) = trace_buckets({0: made({0: TWO}), 1: made({0: TWO}, epoch=epoch)}, one_clock).buckets
    assert (first.late_rank, first.late_by_ns, first.launched_ns) == (None, None, 50)


@pytest.mark.parametrize(
    "traces",
    [
        pytest.param({}, id="no-rank"),
        pytest.param({0: trace(device="gpu")}, id="no-communication"),
        pytest.param({0: made({0: TWO}, host=[])}, id="no-ddp-forward"),
    ],
)
def test_no_buckets(traces: dict[int, Trace]) -> None:
    found = trace_buckets(traces, one_clock=True)
    assert (found.buckets, found.notes) == ((), ())


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces of others are not part of the project: no ../shared")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "resnet50_a100_rank0of2",
            [(8196000, 3610880, 3306963), (31502336, 12135169, 2673916), (26255360, 18361760, 2621533),
             (26550272, 45413103, 2417184), (9724160, 85266719, 2028293)], id="resnet",
        ),
        pytest.param(
            "dlrm_rank3of8",
            [(None, 45573000, 1833500), (None, 47360500, 122500), (None, 54759500, 3854500)], id="dlrm-without-sizes",
        ),
        pytest.param("absolute_ns_rank0of1", [], id="world-size-one-communicates-not"),
    ],
)  # fmt: skip
def test_real_traces(name: str, expected: list[tuple[int | None, int, int]]) -> None:
    """Launches and durations were read off the files by hand: medians of three and of six steps."""
    found = trace_buckets({0: load_trace(TRACES / f"{name}.json.gz")}, one_clock=True)
    assert [(b.num_bytes, b.launched_ns, b.transfer_ns) for b in found.buckets] == expected
    assert found.notes == ()


def of_two_passes(second: list[tuple[int, int]], size_is_known: bool = True) -> Trace:
    """Two forwards in a step, until 100 and until 500, each with its all-reduces."""
    comm = [
        reduce_at(0, time, size if size_is_known else UNKNOWN)
        for time, size in (*TWO, *((400 + time, size) for time, size in second))
    ]
    host = [(Mark.FORWARD, 0, 100, 0), (Mark.FORWARD, 450, 500, 0)]
    host += [(Mark.BACKWARD, c["launched"] - 1, c["launched"] + 1, 0, HOOK) for c in comm]
    compute = [(110, 280, Phase.BACKWARD, 0), (450, 500, Phase.FORWARD, 0), (510, 680, Phase.BACKWARD, 0)]
    return made({0: []}, comm=comm, host=host, compute=compute)


def test_passes_that_send_the_same_are_passes_of_one_module() -> None:
    first, second = traced.find_passes(of_two_passes(TWO)).passes
    assert (first.index, first.origin_ns, first.times_ns) == (0, 100, ((50, 60, 80), (150, 160, 180)))
    assert (second.index, second.origin_ns, second.times_ns) == (1, 500, ((50, 60, 80), (150, 160, 180)))
    assert (first.backward_end_ns, second.backward_end_ns) == (180, 180)
    assert (first.step_start_ns, first.step_end_ns) == (10, 180), "until its computation ended"
    assert (second.step_start_ns, second.step_end_ns) == (-220, 180)
    found = trace_buckets({0: of_two_passes(TWO)}, one_clock=True)
    assert [(one.num_bytes, one.num_passes) for one in found.buckets] == [(MIB, 2), (2 * MIB, 2)]


def test_passes_that_send_something_else_may_be_of_other_modules() -> None:
    (one,) = traced.find_passes(of_two_passes([(150, 3 * MIB)])).passes
    assert (len(one.times_ns), one.spans_forwards) == (3, True)


def test_passes_of_unknown_sizes_may_be_of_other_modules() -> None:
    (one,) = traced.find_passes(of_two_passes(TWO, size_is_known=False)).passes
    assert (len(one.times_ns), one.spans_forwards) == (4, True)
