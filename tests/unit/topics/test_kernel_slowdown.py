"""The same work under communication and alone, on tables built by hand and on a real trace by brute force."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from shared import TRACES
from tables import collective, trace

from ddpprof.load.rank import load_trace
from ddpprof.model import Kernel, Phase, Trace
from ddpprof.topics.kernel_slowdown import MIN_RUNS, OverlapSlowdown, measure_slowdown, merge_slowdowns

B = Phase.BACKWARD
KNOWN, UNSHAPED, OTHER = Kernel("gemm", "[8]", "[[4]]"), Kernel("gemm", "[8]"), Kernel("add", "[1]", "[[2]]")
NUM_STEPS = 6


def made(
    runs: dict[int, list[tuple[int, bool]]],
    kernels: tuple[Kernel, ...] = (KNOWN, UNSHAPED, OTHER),
    kernel: int = 0,
    device: str = "gpu",
) -> Trace:
    """Per step the runs of one kernel: how long, and whether communication covers them. Steps are 1000 ns long."""
    compute, comm = [], []
    for step, lengths in runs.items():
        for place, (length, covered) in enumerate(lengths):
            start = 1000 * step + 100 * place
            compute.append((start, start + length, B, step, kernel))
            if covered:
                comm.append(collective(start, start + length, step=step))
    spans = [(1000 * step, 1000 * step + 1000) for step in range(NUM_STEPS)]
    return trace(steps=spans, compute=compute, comm=comm, kernels=kernels, device=device)


def brief(slowdown: OverlapSlowdown) -> list[tuple[Any, ...]]:
    return [(r.kernel.name, r.ratio, len(r.ratios), r.num_alone, r.lost_ns) for r in slowdown.kernels]


def steps(covered: list[int], alone: list[int]) -> dict[int, list[tuple[int, bool]]]:
    """One step per duration, one run in each."""
    return {step: [(ns, step < len(covered))] for step, ns in enumerate([*covered, *alone])}


def test_the_ratio_is_that_of_the_medians() -> None:
    slowdown = measure_slowdown(made(steps([30, 45, 90], [20, 30, 40])))
    assert brief(slowdown) == [("gemm", 1.5, 3, 3, 165 - 3 * 30)]
    assert (slowdown.covered_ns, slowdown.known_ns, slowdown.known_share) == (165, 165, 1)
    assert (slowdown.ratio, slowdown.lost_ns_per_step) == (165 / 90, round(75 / NUM_STEPS))
    assert (slowdown.knows_input_shapes, slowdown.reason) == (True, None)


def test_time_won_is_not_hidden() -> None:
    assert brief(measure_slowdown(made(steps([10, 10, 10], [20, 20, 20])))) == [("gemm", 0.5, 3, 3, -30)]


@pytest.mark.parametrize(
    ("comm", "covered_ns"),
    [
        pytest.param((0, 50), 100, id="half"),
        pytest.param((0, 49), 0, id="less-than-half"),
        pytest.param((60, 500), 0, id="its-end"),
        pytest.param((50, 500), 100, id="its-second-half"),
    ],
)
def test_a_run_is_covered_from_half_of_it_on(comm: tuple[int, int], covered_ns: int) -> None:
    slowdown = measure_slowdown(
        trace(compute=[(0, 100, B, 0)], comm=[collective(*comm)], kernels=(KNOWN,), device="gpu")
    )
    assert slowdown.covered_ns == covered_ns


def test_a_run_covered_a_little_is_neither() -> None:
    covered, alone = [(0, 100), (200, 300), (400, 500)], [(600, 640), (700, 740), (800, 840)]
    touched = (900, 1000)
    slowdown = measure_slowdown(
        trace(
            compute=[(*span, B, 0) for span in [*covered, *alone, touched]], kernels=(KNOWN,), device="gpu",
            comm=[collective(*span) for span in covered] + [collective(990, 1010)],
        )
    )  # fmt: skip
    assert brief(slowdown) == [("gemm", 2.5, 3, 3, 180)]
    assert slowdown.covered_ns == 300


@pytest.mark.parametrize(
    ("covered", "alone", "known"),
    [
        pytest.param([9, 9, 9], [9, 9, 9], True, id="enough"),
        pytest.param([9, 9], [9, 9, 9, 9], False, id="too-few-covered"),
        pytest.param([9, 9, 9, 9], [9, 9], False, id="too-few-alone"),
    ],
)
def test_too_few_runs_say_nothing(covered: list[int], alone: list[int], known: bool) -> None:
    slowdown = measure_slowdown(made(steps(covered, alone)))
    assert [row.ratio is not None for row in slowdown.kernels] == [known]
    assert (slowdown.lost_ns_per_step is not None, slowdown.known_share) == (known, float(known))
    assert (slowdown.reason is None) == known
    assert MIN_RUNS == 3


SMALL, LARGE = 10, 40
BIASED = {step: [(SMALL, False), (LARGE, True)] for step in range(NUM_STEPS)}
"""In every step a small one alone, then a large one under communication."""


def test_other_work_of_the_same_name_and_grid_is_no_slowdown() -> None:
    """Without input shapes only the same place of a step is the same work."""
    slowdown = measure_slowdown(made(BIASED, kernel=1))
    assert brief(slowdown) == [("gemm", None, 0, 0, 0)]
    assert slowdown.reason is not None
    assert "during communication also ran without communication" in slowdown.reason


def test_with_input_shapes_any_run_is_the_same_work() -> None:
    slowdown = measure_slowdown(made(BIASED))
    assert brief(slowdown) == [("gemm", 4, 6, 6, 6 * 30)]


def test_without_input_shapes_places_compare_with_themselves() -> None:
    runs = {step: [(SMALL + step // 3, step >= 3), (2 * LARGE if step >= 3 else LARGE, step >= 3)] for step in range(6)}
    slowdown = measure_slowdown(made(runs, kernel=1))
    assert brief(slowdown) == [("gemm", 1.55, 6, 6, 3 * 1 + 3 * 40)]
    assert not slowdown.knows_input_shapes


def test_places_are_those_of_steps_with_as_many_runs() -> None:
    """Where a step has one run more, the second is not the second."""
    runs = {0: [(5, False), (5, False)], 1: [(5, False), (5, True)], 2: [(5, False), (5, True), (5, True)]}
    (row,) = measure_slowdown(made(runs, kernel=1)).kernels
    assert (row.covered_ns, row.compared_ns) == (15, 5)


def test_baseline_steps_tell_how_long_work_takes_alone() -> None:
    runs = {step: [(LARGE, True)] if step < 3 else [(SMALL, False)] for step in range(6)}
    slowdown = measure_slowdown(made(runs, kernel=1), [0, 1, 2], [3, 4, 5])
    assert brief(slowdown) == [("gemm", 4, 3, 3, 3 * 30)]
    assert (slowdown.num_steps, slowdown.lost_ns_per_step) == (3, 30)


def test_what_also_slowed_work_without_communication_is_taken_out() -> None:
    """The machine is half as fast in the measured steps; communication makes it another half slower."""
    runs = {step: [(20, False), (30, True)] if step < 3 else [(10, False)] * 2 for step in range(6)}
    slowdown = measure_slowdown(made(runs, kernel=1), [0, 1, 2], [3, 4, 5])
    assert (slowdown.control_ns, slowdown.control_alone_ns, slowdown.control) == (60, 30, 2)
    assert brief(slowdown) == [("gemm", 1.5, 3, 3, 3 * 10)]
    both = merge_slowdowns([slowdown, slowdown])
    assert (both.control_ns, both.control_alone_ns, both.ratio) == (120, 60, 1.5)
    assert measure_slowdown(made(runs), [0, 1, 2]).control is None


def test_a_nanosecond_stays_one_however_slow_the_baseline_was() -> None:
    runs = {step: [(1, False), (1, True)] if step < 3 else [(9, False), (1, False)] for step in range(6)}
    slowdown = measure_slowdown(made(runs, kernel=1), [0, 1, 2], [3, 4, 5])
    assert brief(slowdown) == [("gemm", 1, 3, 3, 0)]


def test_time_in_baseline_steps_is_not_lost() -> None:
    runs = {step: [(LARGE, True)] if step < 4 else [(SMALL, False)] for step in range(6)}
    assert measure_slowdown(made(runs), [0], [1, 2, 3, 4, 5]).covered_ns == LARGE


def test_steps_that_are_neither_do_not_count() -> None:
    runs = {step: [(LARGE, True)] if step < 3 else [(SMALL, False)] for step in range(6)}
    assert measure_slowdown(made(runs), [0, 1, 2, 3, 4]).kernels[0].num_alone == 2


def test_the_kernel_that_lost_most_comes_first() -> None:
    compute, comm = [], []
    for step in range(6):
        for place, kernel in ((0, 0), (100, 2)):
            start = 1000 * step + place
            compute.append((start, start + (10 + kernel * 5 if step < 3 else 10), B, step, kernel))
            if step < 3:
                comm.append(collective(start, start + 50, step=step))
    given = trace(steps=[(1000 * s, 1000 * s + 1000) for s in range(6)], compute=compute, comm=comm, device="gpu",
                  kernels=(KNOWN, UNSHAPED, OTHER))  # fmt: skip
    assert brief(measure_slowdown(given)) == [("add", 2, 3, 3, 30), ("gemm", 1, 3, 3, 0)]


ON_CPU = (Kernel("aten::mm", position=0), Kernel("aten::mm", position=1),
          Kernel("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", position=0))  # fmt: skip


def test_an_op_of_the_cpu_compares_with_itself_in_other_steps() -> None:
    slowdown = measure_slowdown(made(steps([30, 30, 30], [10, 10, 10]), ON_CPU, device="cpu"))
    assert brief(slowdown) == [("aten::mm", 3, 3, 3, 60)]


def test_ops_with_ddps_hooks_in_them_are_left_out_on_cpu() -> None:
    runs = steps([30, 30, 30], [10, 10, 10])
    assert measure_slowdown(made(runs, ON_CPU, kernel=2, device="cpu")).kernels == ()
    assert len(measure_slowdown(made(runs, ON_CPU, kernel=2, device="gpu")).kernels) == 1


def test_the_pieces_of_an_op_count_as_one() -> None:
    """The first piece is covered, the second is not: three quarters of the op are."""
    pieces = [(0, 30, B, 0, 0), (40, 50, B, 0, 0)]
    slowdown = measure_slowdown(trace(compute=pieces, comm=[collective(0, 30)], kernels=ON_CPU))
    assert slowdown.covered_ns == 40


@pytest.mark.parametrize(
    ("given", "measured", "reason"),
    [
        pytest.param(made(steps([], [9, 9])), None, "has no communication", id="no-communication"),
        pytest.param(made(steps([9], [9, 9])), [], "no step was profiled", id="no-steps"),
        pytest.param(
            trace(compute=[(0, 9, B, 0)], comm=[collective(10, 20)], kernels=(KNOWN,), device="gpu"), None,
            "no computation ran during communication", id="never-covered",
        ),
        pytest.param(made(steps([9, 9, 9], [])), None, "also ran without communication", id="always-covered"),
        pytest.param(made(steps([9, 9, 9], [9])), None, "3 times without it", id="too-few"),
    ],
)  # fmt: skip
def test_why_nothing_can_be_said(given: Trace, measured: list[int] | None, reason: str) -> None:
    slowdown = measure_slowdown(given, measured)
    assert slowdown.reason is not None
    assert reason in slowdown.reason
    assert (slowdown.lost_ns_per_step, slowdown.ratio) == (None, None)


def test_a_kernel_of_no_length_is_no_run() -> None:
    slowdown = measure_slowdown(made(steps([0, 9, 9, 9], [0, 9])))
    assert [(row.covered_ns, row.num_alone) for row in slowdown.kernels] == [(27, 1)]


def test_ranks_merge_to_what_their_sums_say() -> None:
    """A slower accelerator is no slowdown: each rank compares with itself."""
    fast, slow = (measure_slowdown(made(steps(*runs))) for runs in [([12, 15], [10] * 3), ([120, 150], [100] * 3)])
    both = merge_slowdowns([fast, slow])
    assert brief(both) == [("gemm", 1.35, 4, 6, 7 + 70)]
    assert (both.num_steps, both.lost_ns_per_step, both.reason) == (12, round(77 / 12), None)
    assert (fast.ratio, both.covered_ns) == (None, 297)
    assert merge_slowdowns([both]) == both


def test_merging_ranks_without_communication_says_so() -> None:
    nothing = measure_slowdown(made(steps([], [9])))
    assert merge_slowdowns([nothing, nothing]).reason == nothing.reason
    assert merge_slowdowns([]).reason == "no step was profiled"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces of others are not part of the project: no ../shared")
@pytest.mark.parametrize("name", ["resnet50_a100_rank0of2", "dlrm_rank3of8", "sampled_rank0of128"])
def test_a_real_trace_by_brute_force(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    slowdown = measure_slowdown(load_trace(path))
    rows, total_ns = brute_force(path)
    found = {
        (r.kernel.name, r.kernel.launch_shape): (r.covered_ns, r.compared_ns, r.lost_ns, r.num_alone, r.ratio)
        for r in slowdown.kernels
    }
    assert found == rows
    assert slowdown.covered_ns == total_ns


def brute_force(path: Path) -> tuple[dict[Any, Any], int]:
    """From the file's events alone, one pair of spans at a time."""
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]

    def span(event: dict[str, Any]) -> tuple[int, int]:
        start = round(event["ts"] * 1000)
        return start, start + round(event["dur"] * 1000)

    steps = {e["name"]: span(e) for e in events if e["cat"] != "gpu_user_annotation" and "ProfilerStep#" in e["name"]}
    launches = {e["args"]["correlation"]: span(e)[0] for e in reversed(events) if e["cat"] == "cuda_runtime"}
    kernels = [e for e in events if e["cat"] == "kernel"]
    comm = [span(e) for e in kernels if "nccl" in e["name"].split("(")[0].split("<")[0]]
    compute = [e for e in kernels if "nccl" not in e["name"].split("(")[0].split("<")[0]]
    count: Counter[Any] = Counter()
    runs = []
    for event in sorted(compute, key=lambda e: (launches[e["args"]["correlation"]], e["ts"])):
        launch, (start, end) = launches[event["args"]["correlation"]], span(event)
        step = next((name for name, (a, b) in steps.items() if a <= launch < b), None)
        if step is None:
            continue
        kernel = (event["name"], "{grid}{block}".format(**event["args"]).replace(" ", ""))
        instants = sum(max(0, min(end, b) - max(start, a)) for a, b in comm)  # one stream: they do not overlap
        runs.append((kernel, step, count[kernel, step], end - start, instants))
        count[kernel, step] += 1
    alone, covered = defaultdict(list), defaultdict(list)
    for kernel, step, place, length, instants in runs:
        work = (kernel, count[kernel, step], place)
        if length and instants == 0:
            alone[work].append(length)
        if length and 2 * instants >= length:
            covered[kernel].append((length, work))
    rows = {}
    for kernel, lengths in covered.items():
        compared = [(length, median(alone[work])) for length, work in lengths if alone[work]]
        num_alone = sum(len(alone[work]) for work in {work for _, work in lengths})
        known = len(compared) >= 3 and num_alone >= 3
        rows[kernel] = (
            sum(length for length, _ in lengths), sum(length for length, _ in compared),
            round(sum(length - reference for length, reference in compared)), num_alone,
            median(length / reference for length, reference in compared) if known else None,
        )  # fmt: skip
    return rows, sum(length for lengths in covered.values() for length, _ in lengths)
