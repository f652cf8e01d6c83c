"""Long traces are measured block by block, kernel by kernel, and without what is far from what is asked for."""

from dataclasses import asdict
from random import Random
from typing import Any

import pytest
from tables import Op, collective, idle_of, trace

from ddpprof.model import UNKNOWN, Kernel, Mark, Phase, Trace
from ddpprof.topics.idle import find_gaps
from ddpprof.topics.kernels import batches_of_kernels, summarise_kernels
from ddpprof.topics.overlap_slowdown import measure_slowdown
from ddpprof.topics.ranks.own_time import measure_progress
from ddpprof.topics.steps.blocks import blocks_of
from ddpprof.topics.steps.overlap import measure_overlap

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
        "kernels": summarise_kernels(made, STEPS),
        "slowdown": asdict(measure_slowdown(made)),
        "baseline": asdict(measure_slowdown(made, STEPS[:4], STEPS[4:])),
    }


@pytest.mark.parametrize("seed", range(4))
def test_how_much_is_measured_at_once_does_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = busy_trace(Random(seed))
    at_once = measured(made)
    monkeypatch.setattr("ddpprof.topics.steps.blocks.BLOCK_ROWS", 3)
    monkeypatch.setattr("ddpprof.topics.ranks.own_time.BLOCK_ROWS", 3)
    monkeypatch.setattr("ddpprof.topics.kernels._BATCH_RUNS", 50)
    monkeypatch.setattr("ddpprof.intervals._MANY_TIMES", 0)
    assert len(list(blocks_of(made.compute, made.collectives))) > 50
    assert len(batches_of_kernels(made)) == len(KERNELS)
    assert measured(made) == at_once
