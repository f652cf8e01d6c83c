"""Traces rewritten for TensorBoard's profiler plugin: one case per rule."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpprof.load.plugin_trace import write_plugin_trace
from ddpprof.model import Trace
from ddpprof.model.tables import PluginCollective, PluginView

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
BEGIN = 5_000_000
"""of the trace, ns: in the copy it is 0"""
BACKWARD = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
DATA = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def whole_view(trace: Trace, name: str, num_bytes: int | None = None) -> PluginView:
    """All of the trace's steps and collectives."""
    comm = trace.collectives
    spans = zip(comm.start_ns.tolist(), comm.end_ns.tolist(), strict=True)
    return view_of(trace, {(start, 0): PluginCollective(name, start, end, num_bytes) for start, end in spans})


def view_of(trace: Trace, collectives: dict[tuple[int, int], PluginCollective]) -> PluginView:
    return PluginView(trace.device, trace.epoch_ns, trace.steps, collectives)


def copied(builder: Any, view: PluginView | None = None, name: str = "nccl:all_reduce") -> dict[str, Any]:
    """The copy of the trace."""
    loaded = builder.load()
    before = builder.path.read_bytes()
    target = builder.path.with_name("host_0000.pt.trace.json.gz")
    write_plugin_trace(builder.path, target, whole_view(loaded, name) if view is None else view)
    assert builder.path.read_bytes() == before
    document: dict[str, Any] = json.loads(gzip.decompress(target.read_bytes()))
    return document


def events(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["name"] == name]


def times(event: dict[str, Any]) -> tuple[float, float]:
    """Start and end, ns."""
    return round(event["ts"] * 1000, 6), round((event["ts"] + event["dur"]) * 1000, 6)


@pytest.fixture
def nccl(trace: Any) -> Any:
    """A step with one all-reduce, as torch writes it since 2024."""
    trace.step(3, BEGIN, BEGIN + 10_000)
    trace.op("record_param_comms", BEGIN + 100, BEGIN + 300, **{"External id": 7})
    trace.annotation("nccl:all_reduce", BEGIN + 110, BEGIN + 290)
    trace.launch(1, BEGIN + 200).launch(2, BEGIN + 1000, category="cuda_driver")
    trace.kernel(ALL_REDUCE, BEGIN + 1000, BEGIN + 4000, 1, 20, **{"External id": 7})
    trace.kernel("gemm", BEGIN + 1500, BEGIN + 2500, 2, 7, **{"External id": 99})
    return trace.add("gpu_user_annotation", "nccl:all_reduce", BEGIN + 1000, BEGIN + 4000, 20)


def test_a_kernel_communicates_by_an_annotation_beside_it(nccl: Any) -> None:
    document = copied(nccl)
    (kernel,) = events(document, ALL_REDUCE)
    shown = [event for event in events(document, "nccl:all_reduce") if event["cat"] == "user_annotation"]
    assert [times(event) for event in shown] == [(1000, 4000)] == [times(kernel)]
    assert (shown[0]["pid"], shown[0]["tid"]) == (kernel["pid"], kernel["tid"])
    number = shown[0]["args"]["External id"]
    launches = {
        event["args"]["correlation"]: event["args"]["External id"] for event in events(document, "cudaLaunchKernel")
    }
    assert number == kernel["args"]["External id"] == launches[1]
    of_others = [
        event["args"].get("External id") for event in document["traceEvents"] if event["name"] not in (ALL_REDUCE,)
    ]
    assert of_others.count(number) == 2, "of the annotation and the launch"


def test_annotations_that_would_count_a_second_time_are_hidden(nccl: Any) -> None:
    hidden = [event["cat"] for event in events(copied(nccl), "nccl:all_reduce")[:2]]
    assert hidden == ["user_annotation, not counted", "gpu_user_annotation, not counted"]


def test_launches_are_of_the_runtime_and_of_an_op_or_of_none(nccl: Any) -> None:
    document = copied(nccl)
    assert {event["cat"] for event in events(document, "cudaLaunchKernel")} == {"Runtime"}
    (kernel,) = events(document, "gemm")
    assert kernel["args"]["External id"] == 0, "no op has the one that Kineto wrote"


@pytest.mark.parametrize(
    ("num_bytes", "dims", "types"),
    [pytest.param(4096, [[4096]], ["unsigned char"], id="known"), pytest.param(None, [], [], id="unknown")],
)
def test_sizes_are_shapes_that_the_plugin_reads(nccl: Any, num_bytes: int | None, dims: Any, types: Any) -> None:
    document = copied(nccl, whole_view(nccl.load(), "nccl:all_reduce", num_bytes))
    shown = next(event for event in events(document, "nccl:all_reduce") if event["cat"] == "user_annotation")
    assert (shown["args"]["Input Dims"], shown["args"]["Input type"]) == (dims, types)


def test_what_does_not_count_is_neither_communication_nor_compute(nccl: Any) -> None:
    document = copied(nccl, view_of(nccl.load(), {}))
    assert [event["cat"] for event in events(document, ALL_REDUCE)] == ["kernel, not counted"]
    assert "user_annotation" not in [event["cat"] for event in events(document, "nccl:all_reduce")]


def test_events_are_the_last_key_and_begin_at_zero(nccl: Any) -> None:
    nccl.keys = {"baseTimeNanoseconds": 17, "distributedInfo": {"rank": 0}}
    document = copied(nccl)
    assert list(document)[-1] == "traceEvents"
    assert document["baseTimeNanoseconds"] == 17 + BEGIN
    assert document["distributedInfo"] == {"rank": 0}
    (step,) = events(document, "ProfilerStep#3")
    assert times(step) == (0, 10_000)


def test_absolute_times_keep_their_nanoseconds(tmp_path: Path, trace: Any) -> None:
    begin = 1_790_000_000_123_456_789
    trace.step(3, begin, begin + 2000).launch(1, begin + 5).kernel("gemm", begin + 101, begin + 1102, 1)
    text = trace.text()
    for event in trace.events:  # a float of Python's own would not hold them
        start = begin + {"ProfilerStep#3": 0, "cudaLaunchKernel": 5, "gemm": 101}[event["name"]]
        text = text.replace(json.dumps(event["ts"]), f"{start // 1000}.{start % 1000:03}", 1)
    trace.text = lambda: text
    (kernel,) = events(copied(trace), "gemm")
    assert times(kernel) == (101, 1102)


def test_only_the_steps_of_the_report_are_steps(trace: Any) -> None:
    trace.step(3, 0, 100).step(4, 100, 200).op("aten::mm", 10, 20)
    loaded = trace.load()
    document = copied(trace, replace(view_of(loaded, {}), steps=loaded.steps[:1]))
    assert [events(document, f"ProfilerStep#{number}")[0]["cat"] for number in (3, 4)] == [
        "user_annotation",
        "user_annotation, not counted",
    ]


def test_steps_that_were_counted_are_marked(trace: Any) -> None:
    forward = "DistributedDataParallel.forward"
    document = copied(trace.annotation(forward, 0, 40).annotation(forward, 100, 140).op("aten::mm", 110, 150))
    assert [times(events(document, f"ProfilerStep#{number}")[0]) for number in (0, 1)] == [(0, 100), (100, 150)]


@pytest.mark.parametrize("category", ["user_annotation", "Operator"])
def test_a_data_loader_is_an_op_and_an_optimizer_is_none(trace: Any, category: str) -> None:
    trace.step(3, 0, 900).add(category, DATA, 0, 100).add(category, "Optimizer.step#SGD.step", 700, 800)
    document = copied(trace.op("aten::mm", 200, 300))
    assert events(document, DATA)[0]["cat"] == "cpu_op"
    assert events(document, "Optimizer.step#SGD.step")[0]["cat"] == "user_annotation"


def test_calls_of_communication_are_cut_out_of_ops(trace: Any) -> None:
    trace.step(3, 0, 1000).op(BACKWARD, 100, 500).op("aten::add_", 120, 180)
    trace.op("c10d::allreduce_", 200, 300).op("record_param_comms", 210, 290).op("aten::add_", 310, 340)
    document = copied(trace.annotation("gloo:all_reduce", 250, 600, tid=300), name="gloo:all_reduce")
    counted = [event for event in document["traceEvents"] if event["cat"] == "cpu_op"]
    assert sorted((event["name"], *times(event)) for event in counted) == [
        ("aten::add_", 120, 180),
        ("aten::add_", 310, 340),
        (BACKWARD, 100, 200),
        (BACKWARD, 300, 500),
    ]


def test_ops_of_other_threads_are_no_compute(trace: Any) -> None:
    trace.step(3, 0, 1000).op("aten::mm", 100, 200).op("aten::copy_", 100, 300, tid=400)
    assert events(copied(trace), "aten::copy_")[0]["cat"] == "cpu_op, not counted"


def test_a_host_span_is_as_the_report_has_it(trace: Any) -> None:
    trace.step(3, 0, 1000).op("c10d::allreduce_", 90, 100)
    trace.annotation("gloo:all_reduce", 250, 2000, tid=300, kept=1)
    view = view_of(trace.load(), {(250, 0): PluginCollective("gloo:all_reduce", 240, 700, 8)})
    (span,) = events(copied(trace, view), "gloo:all_reduce")
    assert (times(span), span["cat"], span["args"]["kept"]) == ((240, 700), "user_annotation", 1)


def test_threads_are_numbers(trace: Any) -> None:
    trace.step(3, 0, 1000).op("aten::mm", 0, 10).add("kernel", "gemm", 20, 30, tid="stream 7")
    assert isinstance(events(copied(trace), "gemm")[0]["tid"], int)


def test_hostile_names_stay_in_their_strings(trace: Any) -> None:
    name = '"><img src=x onerror=alert(1)>\u202e\x1b[31m' + "x" * 10_000
    assert len(events(copied(trace.step(3, 0, 100).op(name, 0, 10)), name)) == 1


def test_events_of_no_phase_stay_as_they_are(nccl: Any) -> None:
    nccl.events.append({"name": "of no phase", "ts": 1.0})
    assert events(copied(nccl), "of no phase")


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"ph": "X", "cat": "cpu_op", "ts": 5001, "dur": 1, "tid": 1, "args": "none"}, id="args-of-an-op"),
        pytest.param(
            {"ph": "X", "cat": "cuda_runtime", "ts": 5001, "dur": 1, "tid": 1, "args": {"correlation": [1]}},
            id="correlation",
        ),
        pytest.param({"ph": "i", "ts": "1.5", "args": [1]}, id="args-and-time-of-a-moment"),
        pytest.param({"ph": "s", "ts": 1e30, "dur": "long"}, id="times-of-an-arrow"),
    ],
)
def test_what_the_report_does_not_mind_is_copied_too(trace: Any, odd: dict[str, Any]) -> None:
    trace.step(3, BEGIN, BEGIN + 1000).op("aten::mm", BEGIN + 100, BEGIN + 200)
    trace.events.append({"name": "odd", **odd})
    document = copied(trace)
    assert times(*events(document, "ProfilerStep#3")) == (0, 1000)
    assert len(events(document, "odd")) == 1
