"""What holds for every trace: sums add up, and only what happened counts, not when, in which order or by which name."""

import re
from dataclasses import asdict, replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import Dialect, Event, device_traces, load, renamed, traces
from tables import breakdown_of, idle_of, run

from ddpprof.intervals import Spans, intersect, merge, subtract
from ddpprof.model import Mark, Rank, Trace
from ddpprof.render.sections import sections
from ddpprof.render.terminal import render_terminal
from ddpprof.report.build import build_report
from ddpprof.topics.buckets.traced import find_passes, trace_buckets
from ddpprof.topics.kernel_slowdown import measure_slowdown
from ddpprof.topics.kernels import summarize_kernels
from ddpprof.topics.steps.overlap import measure_overlap, measure_trailing, spans_of
from ddpprof.topics.wrapper import measure_wrapper_cost

pytestmark = pytest.mark.filterwarnings("error")
settings.register_profile("files", deadline=None, max_examples=40)
FILES = settings.get_profile("files")


def measured(trace: Trace, shift: int = 0) -> dict[str, Any]:
    """Every measure of every step, on a clock without the shift."""
    steps = range(len(trace.steps))
    buckets = trace_buckets({0: find_passes(trace)}, one_clock=True)
    rows = {rank: [replace(row, origin_ns=row.origin_ns - shift) for row in of] for rank, of in buckets.ranks.items()}
    return {
        "device": trace.device,
        "overlap": [measure_overlap(trace, step) for step in [*steps, None]],
        "trailing": [measure_trailing(trace, step) for step in steps],
        "breakdown": [breakdown_of(trace, step) for step in steps],
        "idle": [idle_of(trace, step) for step in steps],
        "wrapper": [measure_wrapper_cost(trace, step, None) for step in steps],
        "kernels": [asdict(summary) for summary in summarize_kernels(trace, steps)],
        "slowdown": asdict(measure_slowdown(trace)),
        "baseline": asdict(measure_slowdown(trace, [0], steps[1:])),
        "buckets": replace(buckets, ranks=rows),
        "notes": trace.notes,
    }  # fmt: skip


@FILES
@given(traces, st.one_of(st.integers(0, 10**7), st.integers(10**18, 2 * 10**18)))
def test_the_clock_does_not_matter(events: list[Event], shift: int) -> None:
    assert measured(load([event.moved(shift) for event in events]), shift) == measured(load(events))


@FILES
@given(traces, st.randoms())
def test_the_order_of_events_in_the_file_does_not_matter(events: list[Event], random: Any) -> None:
    shuffled = random.sample(events, len(events))
    assert measured(load(shuffled)) == measured(load(events))


@FILES
@given(traces, st.sampled_from([lambda tid: 1000 - tid, lambda tid: f"thread {tid}", str]))
def test_the_names_of_threads_and_streams_do_not_matter(events: list[Event], rename: Any) -> None:
    assert measured(load(renamed(events, rename))) == measured(load(events))


@FILES
@given(traces, st.integers(1, 20), st.integers(0, 10**6))
def test_no_share_exceeds_its_whole(events: list[Event], slower: int, ahead_ns: int) -> None:
    """Also where the host runs ahead of a device that is slower: a step is long over on the host before it is done."""
    made = load([event.slowed(slower).moved(ahead_ns) if event.is_on_device else event for event in events])
    report = build_report(run(Rank(0, made, None)))
    shown = StringIO()
    render_terminal(sections(report), shown, width=200)
    assert [share for share in map(float, re.findall(r"([\d.]+)%", shown.getvalue())) if share > 100] == []
    for step in report.ranks[0].measured_steps:
        assert step.parts is not None
        assert step.parts.step_ns == step.duration_ns or made.device == "cpu"
        assert step.overlap_ns <= min(step.comm_ns, step.compute_ns)
        assert step.exposed_ns <= step.comm_ns


DIALECTS = {
    "hip": Dialect(runtime="hip_runtime", launch="hipLaunchKernel", all_reduce="ncclDevKernel_Generic_1(ncclDevComm*)",
                   named_by_arguments=True),
    "rocm-under-cuda's-category": Dialect(launch="hipExtModuleLaunchKernel", named_by_arguments=True,
                                          all_reduce="rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)"),
    "xpu": Dialect(runtime="xpu_runtime", launch="urEnqueueKernelLaunch", all_reduce="oneccl_allreduce_large_float32"),
    "mtia": Dialect(kernel="mtia_ccp_events", runtime="mtia_runtime", launch="mtiaLaunch", named_by_arguments=True,
                    all_reduce="AllReduceKernel"),
    "privateuse1": Dialect(runtime="privateuse1_runtime", launch="AscendCL@LaunchKernel", all_reduce="HcclAllreduce"),
    "cuda-driver": Dialect(runtime="cuda_driver", launch="cuLaunchKernelEx"),
    "nccl-of-2022": Dialect(all_reduce="ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"),
    "torch-of-2021": Dialect("Kernel", "Runtime", "cudaLaunchKernel", "Memcpy", "Operator", "Operator",
                             "ncclAllReduceRingLLKernel_sum_f32(ncclColl)", tid=lambda tid: f"stream {tid}"),
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@settings(FILES, max_examples=15)
@given(device_traces)
def test_every_dialect_says_the_same(dialect: Dialect, events: list[Event]) -> None:
    assert measured(load([dialect.speak(event) for event in events])) == measured(load(events))


@FILES
@given(traces)
def test_sums_add_up(events: list[Event]) -> None:
    trace = load(events)
    for step in [*range(len(trace.steps)), None]:
        overlap = measure_overlap(trace, step)
        assert overlap.overlap_ns + overlap.exposed_ns == overlap.comm_ns
        both = merge(spans_of(trace.compute, step), spans_of(trace.collectives, step)).total_ns
        assert overlap.compute_ns + overlap.exposed_ns == both
    for step, span in enumerate(trace.steps):
        parts, idle = breakdown_of(trace, step), idle_of(trace, step)
        if parts is None:
            assert idle is None
            continue
        assert parts.step_ns == (span.duration_ns if trace.device == "cpu" else sum(instants(trace, step).values()))
        assert idle is None if trace.device == "cpu" else idle is not None and idle.idle_ns == parts.idle_ns
        if trace.device == "gpu":
            counted = instants(trace, step)
            assert counted["compute"] == parts.forward_ns + parts.backward_ns + parts.optimizer_ns + parts.other_ns
            assert counted["copies"] == parts.copy_ns
            assert (counted["exposed"], counted["idle"]) == (parts.exposed_comm_ns, parts.idle_ns + parts.data_ns)
    known = sum(row.total_ns for row in summarize_kernels(trace, range(len(trace.steps))))
    in_steps = trace.compute.step >= 0
    assert known == int((trace.compute.end_ns - trace.compute.start_ns)[in_steps].sum())


def instants(trace: Trace, step: int) -> dict[str, int]:
    """An accelerator's step, nanosecond by nanosecond."""
    tables = (trace.compute, trace.collectives, trace.copies)
    rows = [row for t in tables for row in zip(t.step.tolist(), t.start_ns.tolist(), t.end_ns.tolist(), strict=True)]
    begin = min(s for k, s, e in rows if k == step and e > s)
    after = [s for k, s, e in rows if k == step + 1 and e > s]
    end = max(min(after) if after else max(e for k, s, e in rows if k == step and e > s), begin + 1)

    def held(table: Any) -> Any:
        flags = np.zeros(end - begin, np.bool_)
        for s, e in zip((table.start_ns - begin).tolist(), (table.end_ns - begin).tolist(), strict=True):
            flags[max(s, 0) : max(e, 0)] = True
        return flags

    compute, comm, copies = map(held, tables)
    return {
        "compute": int(compute.sum()),
        "exposed": int((comm & ~compute).sum()),
        "copies": int((copies & ~compute & ~comm).sum()),
        "idle": int((~compute & ~comm & ~copies).sum()),
    }


@FILES
@given(device_traces)
def test_slowdown_compares_covered_time_only(events: list[Event]) -> None:
    trace = load(events)
    slowdown = measure_slowdown(trace)
    comm = spans_of(trace.collectives, None)
    work = trace.compute
    covered = 0
    for start, end, step in zip(work.start_ns.tolist(), work.end_ns.tolist(), work.step.tolist(), strict=True):
        one = Spans(np.array([start]), np.array([end]))
        if step >= 0 and end > start and 2 * intersect(comm, one).total_ns >= end - start:
            covered += end - start
        assert intersect(comm, one).total_ns + subtract(one, comm).total_ns == end - start
    assert slowdown.covered_ns == covered
    assert 0 <= slowdown.known_ns <= sum(row.compared_ns for row in slowdown.kernels) <= covered


def test_the_random_traces_have_what_they_are_meant_to_test() -> None:
    """Marks of all kinds, and each kind of work, so that the properties are not about nothing."""
    seen: set[str] = set()

    @settings(FILES, max_examples=200, database=None)
    @given(device_traces)
    def look(events: list[Event]) -> None:
        trace = load(events)
        seen.update(Mark(mark).name for mark in set(trace.host_spans.mark.tolist()))
        buckets, slowdown = trace_buckets({0: find_passes(trace)}, one_clock=True), measure_slowdown(trace)
        idle = [found for step in range(len(trace.steps)) if (found := idle_of(trace, step))]
        found = {
            "buckets": buckets.buckets,
            "left out": buckets.notes,
            "sizes": any(bucket.num_bytes for bucket in buckets.buckets),
            "covered": slowdown.kernels,
            "compared": any(row.ratios for row in slowdown.kernels),
            "late": any(one.launch_bound_ns for one in idle),
            "waits": any(one.comm_wait_ns for one in idle),
            "other": any(one.other_ns for one in idle),
            "copies": len(trace.copies),
        }
        seen.update(name for name, there in found.items() if there)

    look()
    assert {"FORWARD", "BACKWARD", "OPTIMIZER", "DATA", "BUCKET_COPY_IN", "BUCKET_COPY_OUT"} <= seen
    assert {"buckets", "left out", "sizes", "covered", "compared"} <= seen
    assert {"late", "waits", "other", "copies"} <= seen
