"""torch-tb-profiler itself, on rewritten traces: its numbers are the report's, for every trace of these kinds."""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from random_traces import Event, device_traces, host_traces

from ddpprof.events import Rank, Trace
from ddpprof.intervals import Spans, clip, intersect, subtract, union
from ddpprof.load.folder import load_trace
from ddpprof.load.plugin_trace import write_plugin_trace
from ddpprof.measures.overlap import spans_of
from ddpprof.render.tensorboard.plugin_view import plugin_views

data = pytest.importorskip("torch_tb_profiler.profiler.data", reason="pip install 'ddpprof[tensorboard]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # the plugin's own code, which nobody maintains, and its pandas

Rows = dict[int, tuple[float, float, float]]
"""by step: computation alone, both, communication alone; µs"""


def shown(events: list[Event]) -> tuple[Trace, Rows]:
    """What the plugin computes of the copy."""
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "trace.json", Path(folder) / "host_0000.pt.trace.json.gz"
        source.write_text(f'{{"traceEvents": [{", ".join(event.text() for event in events)}]}}')
        trace = load_trace(source)
        write_plugin_trace(source, target, trace, plugin_views([Rank(0, trace, None)], ()).of_rank[0])
        document: dict[str, Any] = json.loads(gzip.decompress(target.read_bytes()))
    profile = data.RunProfileData.from_json("host_0000", None, document)
    costs = zip(profile.steps_names, profile.comm_overlap_costs, strict=True)
    return trace, {
        int(name): (cost.computation - cost.overlap, cost.overlap, cost.communication - cost.overlap)
        for name, cost in costs
    }


def microseconds(compute: Spans, comm: Spans) -> tuple[float, float, float]:
    parts = (subtract(compute, comm), intersect(compute, comm), subtract(comm, compute))
    first, second, third = (part.total_ns / 1000 for part in parts)
    return first, second, third


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(host_traces)
def test_on_cpu(events: list[Event]) -> None:
    """A collective counts to the end of its step: there the plugin's step is over, and the report's is not."""
    trace, rows = shown(events)
    for index, step in enumerate(trace.steps):
        comm = clip(spans_of(trace.collectives, index), step.start_ns, step.end_ns)
        assert rows[step.number] == pytest.approx(microseconds(spans_of(trace.compute, index), comm), abs=1e-6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(device_traces)
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
    """The plugin's steps on a device: each from the end of the one before it to the end of what it launched."""
    windows = []
    begin = trace.steps[0].start_ns
    for index in steps:
        step = trace.steps[index]
        ends = [
            int(table.end_ns[table.step == index].max(initial=step.end_ns))
            for table in (trace.compute, trace.copies, trace.collectives)
        ]
        begin = max(begin, step.start_ns)
        windows.append((begin, max(*ends, begin)))
        begin = windows[-1][1]
    return windows
