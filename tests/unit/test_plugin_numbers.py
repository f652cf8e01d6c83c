"""torch-tb-profiler itself, on rewritten traces: its numbers are the report's, for every trace of these kinds."""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from analysed import as_analysed
from hypothesis import HealthCheck, assume, example, given, settings
from random_traces import TRAINING, Event, device_events, device_traces, host_traces, load

from ddpprof.intervals import Spans, clip, intersect, subtract, union
from ddpprof.load.plugin_trace import write_plugin_trace
from ddpprof.load.rank import load_trace
from ddpprof.model import Rank, Trace
from ddpprof.render.tensorboard_plugin import plugin_views
from ddpprof.topics.steps.overlap import spans_of

data = pytest.importorskip("torch_tb_profiler.profiler.data", reason="pip install 'ddpprof[tensorboard]'")
loader = pytest.importorskip("torch_tb_profiler.profiler.loader")

pytestmark = pytest.mark.filterwarnings("ignore")  # the plugin's own code, which nobody maintains, and its pandas

KERNEL: dict[str, Any] = {
    "what": "kernel", "launched": 0, "delay": 1, "length": 0, "stream": 7, "variant": 0, "is_graph": False,
    "num_elements": None,
}  # fmt: skip

Rows = dict[int, tuple[float, float, float]]
"""by step: computation alone, both, communication alone; µs"""


def shown(events: list[Event]) -> tuple[Trace, Rows]:
    """The tables of a trace, and what the plugin computes of its copy."""
    (profile,) = copies([events])
    costs = zip(profile.steps_names, profile.comm_overlap_costs, strict=True)
    return load(events), {
        int(name): (cost.computation - cost.overlap, cost.overlap, cost.communication - cost.overlap)
        for name, cost in costs
    }


def copies(ranks: list[list[Event]]) -> list[Any]:
    """What the plugin reads of one trace of each rank."""
    with TemporaryDirectory() as folder:
        sources = [Path(folder) / f"rank{number}.json" for number in range(len(ranks))]
        for source, events in zip(sources, ranks, strict=True):
            source.write_text(f'{{"traceEvents": [{", ".join(event.text() for event in events)}]}}')
        traces = [Rank(number, load_trace(source), None) for number, source in enumerate(sources)]
        views, read = plugin_views(map(as_analysed, traces)).of_rank, []
        for rank, source in zip(traces, sources, strict=True):
            target = Path(folder) / "copy.pt.trace.json.gz"
            write_plugin_trace(source, target, views[rank.rank])
            document = json.loads(gzip.decompress(target.read_bytes()))
            read.append(data.RunProfileData.from_json(f"host_{rank.rank:04}", None, document))
    return read


def nccl_step(*kernels: tuple[str, int, int]) -> list[Event]:
    """Kernels of one step, each on a stream of its own, launched in this order."""
    events = [Event("user_annotation", "ProfilerStep#3", 0, 1000, TRAINING)]
    for number, (name, start, end) in enumerate([("gemm", 0, 50), *kernels], 1):
        events.append(Event("cuda_runtime", "cudaLaunchKernel", number, number + 1, TRAINING, {"correlation": number}))
        events.append(Event("kernel", name, start, end, number, {"correlation": number, "stream": number}))
    return events


def test_ranks_wait_for_each_other_as_in_the_report() -> None:
    """Also where two streams of NCCL's begin in another order on one rank."""
    reduce, broadcast = "ncclDevKernel_AllReduce_Sum_f32", "ncclDevKernel_Broadcast_RING_LL"
    ranks = [
        nccl_step((reduce, 100, 300), (broadcast, 110, 400), (reduce, 500, 600)),
        nccl_step((reduce, 120, 300), (broadcast, 110, 410), (reduce, 550, 600)),
    ]
    profiles = [data.DistributedRunProfileData(profile) for profile in copies(ranks)]
    shown = loader.RunLoader("run", "", None)._process_distributed_profiles(profiles, None)
    # Transfers: 180, 290 and 50 ns, at the end of each; the first two at once.
    moved = 290 + 50
    waits = {worker: [round(us * 1000) for us in cells] for worker, cells in shown.steps_to_wait["data"]["3"].items()}
    assert waits == {"host_0000": [moved, 300 + 100 - moved], "host_0001": [moved, 300 + 50 - moved]}
    assert {row[0]: row[1] for row in shown.comm_ops["data"]["host_0001"]["rows"]} == {
        "nccl:all_reduce": 2,
        "nccl:broadcast": 1,
    }


def microseconds(compute: Spans, comm: Spans) -> tuple[float, float, float]:
    parts = (subtract(compute, comm), intersect(compute, comm), subtract(comm, compute))
    first, second, third = (part.total_ns / 1000 for part in parts)
    return first, second, third


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(host_traces)
def test_on_cpu(events: list[Event]) -> None:
    """A collective counts to the end of its step: there the plugin's step is over, and the report's is not."""
    begins = [event.start for event in events if event.name == "gloo:all_reduce"]
    assume(len(set(begins)) == len(begins))  # a thread begins one thing at a time; the plugin counts two as two
    trace, rows = shown(events)
    for index, step in enumerate(trace.steps):
        comm = clip(spans_of(trace.collectives, index), step.start_ns, step.end_ns)
        assert rows[step.number] == pytest.approx(microseconds(spans_of(trace.compute, index), comm), abs=1e-6)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(device_traces)
@example(
    device_events([[KERNEL, {**KERNEL, "what": "comm", "launched": 702, "delay": 300}], [{**KERNEL, "length": 1}]])
)
def test_on_an_accelerator(events: list[Event]) -> None:
    """By the plugin's steps, which divide time: one ends with the last work that it launched, there begins the next.

    The report's divide work, by who launched it: the same where no work of a step overtakes that of the one before.
    Last steps that launch less than others the plugin leaves out.
    """
    trace, rows = shown(events)
    assume(len(trace.compute))  # without any the plugin takes the ops of the host for compute
    kept = [index for index, step in enumerate(trace.steps) if step.number in rows]
    assert kept == list(range(len(kept)))
    windows = plugin_windows(trace, kept)
    counted = np.isin(trace.compute.step, range(len(trace.steps)))
    compute = union(trace.compute.start_ns[counted], trace.compute.end_ns[counted])
    comm = spans_of(trace.collectives, None)
    for index, (start, end) in zip(kept, windows, strict=True):
        parts = microseconds(clip(compute, start, end), clip(comm, start, end))
        assert rows[trace.steps[index].number] == pytest.approx(parts, abs=1e-6)


def plugin_windows(trace: Trace, steps: list[int]) -> list[tuple[int, int]]:
    """The plugin's steps on a device: each from the end of the one before it to the end of what it launched.

    A collective without length ends none.
    """
    windows = []
    begin = trace.steps[0].start_ns
    for index in steps:
        step = trace.steps[index]
        lasts = trace.collectives.end_ns > trace.collectives.start_ns
        ends = [
            int(table.end_ns[rows & (table.step == index)].max(initial=step.end_ns))
            for table, rows in ((trace.compute, True), (trace.copies, True), (trace.collectives, lasts))
        ]
        begin = max(begin, step.start_ns)
        windows.append((begin, max(*ends, begin)))
        begin = windows[-1][1]
    return windows
