"""Why an accelerator had nothing to do: a gap has the cause of what ends it."""

import gzip
import json
from bisect import bisect_right
from dataclasses import asdict, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import TRACES
from tables import Op, breakdown_of, collective, idle_of, trace

from ddpprof.load.run import load_run
from ddpprof.model import UNKNOWN, Kernel, Mark, Phase, Rank, Trace
from ddpprof.report.build import build_report
from ddpprof.topics.idle import Idle, RankAllocations, blocks_of, find_gaps, measure_allocations
from ddpprof.topics.kernel_slowdown import measure_slowdown
from ddpprof.topics.kernels import batches_of_kernels, summarize_kernels
from ddpprof.topics.ranks.own_time import measure_progress
from ddpprof.topics.steps.overlap import measure_overlap

F, B, X = Phase.FORWARD, Phase.BACKWARD, Phase.OTHER
LATENCY = 5
FIRST: Op = (100, 200, F, 0, 0, 100 - LATENCY)
"""The first kernel, on an idle accelerator: it shows the latency."""


def kernel(start: int, end: int, launched: int) -> Op:
    return (start, end, B, 0, 0, launched)


def made(compute: Any = (), **tables: Any) -> Trace:
    return trace(device="gpu", compute=[FIRST, *compute], **tables)


@pytest.mark.parametrize(
    ("launched", "expected"),
    [
        pytest.param(290, Idle(100, 0, 0), id="launched-late-in-the-gap"),
        pytest.param(200, Idle(100, 0, 0), id="launched-when-the-gap-began"),
        pytest.param(196, Idle(100, 0, 0), id="launched-before-but-by-less-than-the-latency"),
        pytest.param(195, Idle(0, 0, 100), id="launched-in-time"),
        pytest.param(UNKNOWN, Idle(0, 0, 100), id="launch-unknown"),
    ],
)
def test_the_launch_of_what_ends_a_gap_says_why_it_was(launched: int, expected: Idle) -> None:
    assert idle_of(made([kernel(300, 310, launched)]), 0) == expected


@pytest.mark.parametrize(
    ("launched", "expected"),
    [pytest.param(150, Idle(0, 100, 0), id="in-time"), pytest.param(250, Idle(100, 0, 0), id="late")],
)
def test_communication_that_was_launched_and_has_not_begun_is_waited_for(launched: int, expected: Idle) -> None:
    assert idle_of(made(comm=[collective(300, 310, launched=launched)]), 0) == expected


@pytest.mark.parametrize(
    ("comm", "expected"),
    [
        pytest.param(collective(150, 250), Idle(0, 50, 0), id="up-to-the-gap"),
        pytest.param(collective(150, 199), Idle(0, 0, 100), id="over-before-the-gap"),
    ],
)
def test_what_follows_on_communication_waited_for_it(comm: dict[str, int], expected: Idle) -> None:
    assert idle_of(made([kernel(300, 310, 110)], comm=[comm]), 0) == expected


def test_late_work_after_communication_is_launch_bound() -> None:
    assert idle_of(made([kernel(300, 310, 260)], comm=[collective(150, 250)]), 0) == Idle(50, 0, 0)


def test_each_gap_has_its_own_cause() -> None:
    runs = [kernel(210, 220, 204), kernel(240, 250, 110), kernel(300, 310, 120)]
    assert idle_of(made(runs, comm=[collective(250, 270)]), 0) == Idle(10, 30, 20)


def test_of_what_starts_at_once_the_first_launch_counts() -> None:
    assert idle_of(made([kernel(300, 310, 290), kernel(300, 320, 110)]), 0) == Idle(0, 0, 100)
    assert idle_of(made([kernel(300, 310, UNKNOWN), kernel(300, 320, 290)]), 0) == Idle(100, 0, 0)


def test_copies_end_gaps_too() -> None:
    assert idle_of(made(copies=[(300, 310, X, 0, 0, 290)]), 0) == Idle(100, 0, 0)


def test_a_kernel_of_no_length_ends_no_gap() -> None:
    assert idle_of(made([kernel(250, 250, 110), kernel(300, 310, 290)]), 0) == Idle(100, 0, 0)


def test_time_in_the_loader_is_not_idle() -> None:
    given_trace = made([kernel(300, 310, 290)], host=[(Mark.DATA, 220, 280, 0)])
    assert idle_of(given_trace, 0) == Idle(40, 0, 0)
    parts = breakdown_of(given_trace, 0)
    assert parts is not None
    assert (parts.data_ns, parts.idle_ns) == (60, 40)


def test_the_gap_before_the_next_step_belongs_to_the_step_before() -> None:
    given_trace = trace(
        steps=[(0, 250), (250, 400)], device="gpu", compute=[FIRST, (300, 310, F, 1, 0, 290), (320, 330, F, 1, 0, 200)]
    )
    assert idle_of(given_trace, 0) == Idle(100, 0, 0)
    assert idle_of(given_trace, 1) == Idle(0, 0, 10)


def test_work_of_no_step_is_work() -> None:
    given_trace = made([kernel(300, 310, 290), (210, 290, X, -1, 0, 120)])
    assert idle_of(given_trace, 0) == Idle(10, 0, 10)


def test_the_latency_is_that_of_kernels_not_of_communication() -> None:
    """Threads of the host may communicate, and begin at once."""
    comm = [collective(305, 312, launched=305)]
    assert idle_of(made([kernel(300, 310, 196)], comm=comm), 0) == Idle(100, 0, 0)


def test_a_clock_that_lets_kernels_start_before_their_launch_gives_no_latency() -> None:
    assert idle_of(made([kernel(300, 310, 199), kernel(400, 410, 420)]), 0) == Idle(90, 0, 100)


def test_on_cpu_and_without_work_there_is_no_answer() -> None:
    assert idle_of(trace(compute=[(0, 10, F, 0)]), 0) is None
    assert idle_of(trace(steps=[(0, 10), (10, 20)], compute=[(0, 10, F, 0)], device="gpu"), 1) is None


SPAN = st.tuples(st.integers(0, 200), st.integers(0, 40)).map(lambda s: (s[0], s[0] + s[1]))
ROWS = st.lists(st.tuples(SPAN, st.integers(0, 30), st.integers(-1, 1)), max_size=10)


@given(ROWS, ROWS, ROWS, st.lists(SPAN, max_size=3))
def test_causes_add_up_to_the_idle_time(compute: Any, copies: Any, comm: Any, data: Any) -> None:
    given_trace = trace(
        steps=[(0, 100), (100, 200)], device="gpu", host=[(Mark.DATA, *span, 0) for span in data],
        compute=[(*span, F, step, 0, max(UNKNOWN, span[0] - delay)) for span, delay, step in compute],
        copies=[(*span, X, step, 0, max(UNKNOWN, span[0] - delay)) for span, delay, step in copies],
        comm=[collective(*span, B, step, max(UNKNOWN, span[0] - delay)) for span, delay, step in comm],
    )  # fmt: skip
    for step in range(2):
        parts, idle = breakdown_of(given_trace, step), idle_of(given_trace, step)
        assert (parts is None) == (idle is None)
        if parts is not None and idle is not None:
            assert idle.idle_ns == parts.idle_ns
            assert all(getattr(idle, name) >= 0 for name in Idle.__slots__)


STEPS, STEP_NS, KERNELS = range(8), 400, tuple(Kernel(f"k{index}", "[8]") for index in range(5))


def busy_trace(random: Random) -> Trace:
    """Kernels, copies and collectives that overlap, touch, leave gaps, and last no time; some launches are unknown."""

    def row(step: int) -> tuple[int, int, int]:
        start = step * STEP_NS + random.randrange(STEP_NS)
        return (
            start,
            start + random.choice([0, 1, 5, 20, 90]),
            random.choice([UNKNOWN, *range(max(0, start - 20), start)]),
        )

    def op(step: int) -> Op:
        start, end, launched = row(step)
        return start, end, random.choice(list(Phase)), step, random.randrange(len(KERNELS)), launched

    def comm(step: int) -> dict[str, int]:
        start, end, launched = row(step)
        return collective(start, end, random.choice([Phase.BACKWARD, Phase.FORWARD]), step, launched)

    return trace(
        steps=[(step * STEP_NS, (step + 1) * STEP_NS) for step in STEPS],
        compute=[op(step) for step in STEPS for _ in range(40)],
        copies=[op(step) for step in STEPS for _ in range(3)],
        comm=[comm(step) for step in STEPS for _ in range(5)],
        host=[(Mark.DATA, step * STEP_NS, step * STEP_NS + 30, step) for step in STEPS],
        device="gpu",
        kernels=KERNELS,
    )


def measured(made: Trace) -> dict[str, Any]:
    gaps = find_gaps(made)
    assert gaps is not None
    return {
        "gaps": (gaps.busy.start_ns.tolist(), gaps.busy.end_ns.tolist(), gaps.cause.tolist()),
        "idle": [idle_of(made, step) for step in STEPS],
        "overlap": [measure_overlap(made, step) for step in [*STEPS, None]],
        "progress": measure_progress(made),
        "kernels": summarize_kernels(made, STEPS),
        "slowdown": asdict(measure_slowdown(made)),
        "baseline": asdict(measure_slowdown(made, STEPS[:4], STEPS[4:])),
    }


@pytest.mark.parametrize("seed", range(4))
def test_how_much_is_measured_at_once_does_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = busy_trace(Random(seed))
    at_once = measured(made)
    monkeypatch.setattr("ddpprof.topics.idle.BLOCK_ROWS", 3)
    monkeypatch.setattr("ddpprof.topics.ranks.own_time.BLOCK_ROWS", 3)
    monkeypatch.setattr("ddpprof.topics.kernels._BATCH_RUNS", 50)
    monkeypatch.setattr("ddpprof.intervals._MANY_TIMES", 0)
    assert len(list(blocks_of(made.compute, made.collectives))) > 50
    assert len(batches_of_kernels(made)) == len(KERNELS)
    assert measured(made) == at_once


def reading(waits: tuple[tuple[int, int, int], ...] = (), **tables: Any) -> Trace:
    """A kernel ends at 200, and the next one, launched at 290, begins at 300. `waits`: start, end and thread."""
    marks = ((Mark.FORWARD, 100, 110, 0), *((Mark.DEVICE_WAIT, start, end, 0) for start, end, _ in waits))
    given_trace = made([kernel(300, 310, 290)], host=marks, **tables)
    thread = np.array([0, *(on for _, _, on in waits)])
    return replace(given_trace, host_spans=replace(given_trace.host_spans, thread=thread))


@pytest.mark.parametrize(
    ("waits", "read_ns"),
    [
        pytest.param(((150, 205, 0),), 100, id="the-host-waits-when-the-gap-begins"),
        pytest.param(((150, 200, 0),), 0, id="its-wait-is-over"),
        pytest.param(((201, 220, 0),), 0, id="it-waits-later"),
        pytest.param(((150, 205, 2),), 0, id="another-thread-waits"),
        pytest.param((), 0, id="it-does-not-wait"),
    ],
)
def test_late_work_after_a_wait_of_the_host(waits: tuple[tuple[int, int, int], ...], read_ns: int) -> None:
    idle = idle_of(reading(waits), 0)
    assert idle == Idle(100, 0, 0, read_ns)
    assert idle.late_launch_ns == 100 - read_ns


@pytest.mark.parametrize(
    ("name", "read_ns"),
    [
        pytest.param("Memcpy DtoH (Device -> Pageable)", 80, id="the-host-waits-for-the-copy"),
        pytest.param("Memcpy DtoH (Device -> Pinned)", 0, id="it-need-not"),
        pytest.param("Memcpy HtoD (Pageable -> Device)", 0, id="to-the-device"),
    ],
)
def test_late_work_after_a_copy_to_the_host(name: str, read_ns: int) -> None:
    copies = [(200, 220, B, 0, 0, 150)]
    assert idle_of(reading(copies=copies, names=(name,)), 0) == Idle(80, 0, 0, read_ns)


def test_gaps_in_which_the_host_manages_memory() -> None:
    """Gaps of 30, 20 and 40 ns; the host allocates in the first two, and in the last step not at all."""
    steps = [(0, 200), (200, 400), (400, 600)]
    spans = ((0, 50), (80, 110), (130, 160))
    compute = [(200 * step + a, 200 * step + b, B, step) for step in range(3) for a, b in spans]
    calls = [
        (Mark.DEVICE_MEMORY, 200 * step + at, 200 * step + at + 6, step) for step in (0, 1) for at in (60, 66, 112)
    ]
    made = Rank(0, trace(steps, compute=compute, host=calls, device="cuda"), None)
    assert measure_allocations(made, [0, 1]) == RankAllocations(0, 2, 3, 50)
    assert measure_allocations(made, [0, 1, 2]) == RankAllocations(0, 3, 3, 50)
    assert measure_allocations(made, [2]) is None
    assert measure_allocations(Rank(0, None, None), [0]) is None
    without_work = Rank(0, trace(steps, host=calls, device="cuda"), None)
    assert measure_allocations(without_work, [0, 1]) is None


DLRM = TRACES / "dlrm_rank3of8.json.gz"


@pytest.mark.skipif(not DLRM.exists(), reason=f"{DLRM} is missing")
def test_reads_of_a_real_job_are_those_that_its_file_shows() -> None:
    """Gaps of the device, in ns, after which work is launched late and which begin as the host waits, by step."""
    with gzip.open(DLRM) as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("ph") == "X"]
    called = {one["args"]["correlation"]: one["ts"] for one in events if one.get("cat") == "cuda_runtime"}
    waits = [(one["ts"], one["ts"] + one["dur"]) for one in events if one["name"].endswith("Synchronize")]
    read = {one["ts"] + one["dur"] for one in events if one["name"] == "Memcpy DtoH (Device -> Pageable)"}
    steps = {one["name"]: one["ts"] for one in events if one["name"].startswith("ProfilerStep")}
    begins = sorted(steps.values())
    expected, busy_until = [0] * len(begins), -1
    device = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for one in sorted(device, key=lambda one: one["ts"]):
        launched = called.get(one["args"].get("correlation"), -1)
        if 0 <= busy_until < min(one["ts"], launched) and (
            busy_until in read or any(begin <= busy_until < end for begin, end in waits)
        ):
            expected[bisect_right(begins, launched) - 1] += 1000 * (one["ts"] - busy_until)
        busy_until = max(busy_until, one["ts"] + one["dur"])
    (rank,) = build_report(load_run(DLRM)).ranks
    assert [one.idle.host_read_ns for one in rank.steps if one.idle is not None] == expected
    assert sum(expected) > 6_000_000
