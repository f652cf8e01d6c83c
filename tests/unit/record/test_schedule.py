"""Which step is left alone, timed, recorded, profiled."""

from __future__ import annotations

from typing import Any

import pytest

from ddpprof.model import StepMode
from ddpprof.record.schedule import Schedule
from ddpprof.record.settings import Settings

LETTERS = {
    StepMode.SKIP: "s",
    StepMode.OFF: "-",
    StepMode.LIGHT: "l",
    StepMode.WARMUP: "w",
    StepMode.PROFILED: "P",
    StepMode.BASELINE: "B",
    StepMode.ALONE: "A",
    StepMode.WITHOUT_DDP: "0",
    StepMode.DONE: ".",
}


def modes(schedule: Schedule, num_steps: int) -> str:
    return "".join(LETTERS[schedule.mode(step)] for step in range(num_steps))


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        pytest.param({}, "sss-l-ll-l-wPPPPP..", id="as-it-comes"),
        pytest.param(
            {"skip_first": 0, "cost_steps": 0, "warmup": 0, "steps": 2}, "sPP..", id="nothing-but-the-first-step-before"
        ),
        pytest.param({"skip_first": 1, "cost_steps": 3, "warmup": 2, "steps": 1}, "s-llwwP..", id="odd-numbers"),
        pytest.param({"skip_first": 1, "cost_steps": 0, "steps": 2, "baseline_steps": 3}, "swPPBBB..", id="baseline"),
        pytest.param(
            {"skip_first": 1, "cost_steps": 0, "steps": 1, "baseline_steps": 2, "alone_steps": 3},
            "swPBBAAA..",
            id="alone",
        ),
        pytest.param(
            {"skip_first": 1, "cost_steps": 0, "profiler": False, "steps": 2, "alone_steps": 2},
            "sllAA..",
            id="alone-needs-no-profiler",
        ),
        pytest.param(
            {"skip_first": 1, "cost_steps": 0, "profiler": False, "steps": 2, "baseline_steps": 3},
            "sll..",
            id="baseline-needs-the-profiler",
        ),
        pytest.param({"skip_first": 1, "cost_steps": 2, "timed_steps": 3, "steps": 1}, "s-l---wP..", id="timed"),
        pytest.param(
            {"skip_first": 1, "cost_steps": 0, "steps": 2, "ddp_blocks": 2, "block_steps": 2},
            "swPPsss--sss00sss--sss00..",
            id="blocks-with-and-without-ddp",
        ),
        pytest.param({"profiler": False, "steps": 2}, "sss-l-ll-l-ll..", id="light-recording-has-no-warmup"),
    ],
)
def test_modes(choices: dict[str, Any], expected: str) -> None:
    schedule = Schedule(Settings("run", **choices))
    assert modes(schedule, len(expected)) == expected
    assert schedule.num_steps == expected.index(".")


def test_without_the_profiler_steps_alone_follow_at_once() -> None:
    schedule = Schedule(Settings("run", skip_first=1, cost_steps=0, warmup=2, steps=1, baseline_steps=2, alone_steps=2))
    assert modes(schedule, 9) == "swwPBBAA."
    schedule.without_profiler()
    assert modes(schedule, 9) == "slllAA..."
    assert schedule.num_steps == 6


def test_light_recording_takes_the_profilers_place() -> None:
    schedule = Schedule(Settings("run", skip_first=1, cost_steps=2, warmup=2, steps=2, baseline_steps=4))
    assert modes(schedule, 12) == "s-lwwPPBBBB."
    schedule.without_profiler()
    assert modes(schedule, 8) == "s-lllll."
