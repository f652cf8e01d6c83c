"""Where steps end, and which of them are recorded."""

from __future__ import annotations

from typing import Any

import pytest

from ddpprof.model import StepMode
from ddpprof.record.settings import Settings
from ddpprof.record.steps import Schedule, StepDetector

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


def marked(calls: str, *, optimizer_alive: bool = True) -> str:
    """`calls` with the ends of steps marked. A forward belongs to module 0, one after a digit to that module."""
    finder = StepDetector(lambda: optimizer_alive)
    text, module = "", 0
    for call in calls:
        if call == " ":
            continue
        if call.isdigit():
            module = int(call)
        elif call in "Ff":
            text += "|F" if finder.forward_begins(module, call == "F") else "F"
            text = text if call == "F" else f"{text[:-1]}f"
            module = 0
        elif call == "!":
            text += "!|" if finder.step_marked() else "!"
        else:
            text += f"{call}|" if finder.optimizer_stepped(ord(call)) else call
    return text


def test_steps_of_a_script_that_never_calls_ddp() -> None:
    finder = StepDetector(lambda: True)
    assert [finder.optimizer_stepped(1) for _ in range(2)] == [False, False]
    finder.steps_without_forward()
    assert [finder.optimizer_stepped(one) for one in (1, 2, 1, 2)] == [True, True, False, True]
    finder.forward_begins(0, synchronizes=True)
    assert [finder.optimizer_stepped(2) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param("Fa Fa Fa", "Fa|Fa|Fa|", id="one-optimizer"),
        pytest.param("fffFa fffFa", "fffFa|fffFa|", id="accumulation-under-no-sync"),
        pytest.param("FFFFa FFFFa", "FFFFa|FFFFa|", id="accumulation-without-no-sync"),
        pytest.param("fa fa Fa", "fafaFa|", id="local-steps-until-one-synchronizes"),
        pytest.param("Fab Fab Fab", "Fa|bFab|Fab|", id="two-optimizers"),
        pytest.param("0F1F1Fa b 0F1F1Fa b", "FFFa|bFFFab|", id="gan-of-one-backward-each"),
        pytest.param("1Fa 0F1Fb 1Fa 0F1Fb", "Fa|FFb|FaFFb|", id="gan-that-synchronizes-in-between"),
        pytest.param("FaFaFaFb FaFaFaFb", "Fa|Fa|Fa|Fb|FaFaFaFb|", id="three-critic-steps-and-a-generator-step"),
        pytest.param("FaFaFa FbFbFb FaFaFa FbFb Fa", "Fa|Fa|Fa|Fb|Fb|Fb|FaFa|Fa|Fb|Fb|Fa|", id="two-models-in-turns"),
        pytest.param("FaFa FaFb FaFb FaFb", "Fa|Fa|Fa|Fb|FaFb|FaFb|", id="a-gan-whose-critic-trains-alone-first"),
        pytest.param("FaFaFa FbFb FaFbFb", "Fa|Fa|Fa|Fb|Fb|FaFb|Fb|", id="a-generator-that-trains-alone-first"),
        pytest.param("FaFb FaFbFb FaFbFb", "Fa|Fb|FaFb|Fb|FaFb|Fb|", id="two-generator-steps-and-a-critic-step"),
        pytest.param("Fab Fb Fb Fab", "Fa|bFb|Fb|Fab|", id="an-optimizer-that-steps-rarely"),
        pytest.param(
            "FaFaFaFb FaFaFaFbFb FaFaFaFb FaFaFaFb",
            "Fa|Fa|Fa|Fb|FaFaFaFb|Fb|Fa|Fa|Fa|Fb|FaFaFaFb|",
            id="a-gan-that-breaks-its-rhythm-once",
        ),
        pytest.param("Fabcd Fabcd", "Fa|bcdFabcd|", id="one-optimizer-per-parameter"),
        pytest.param("Faa Faa", "Fa|aFa|a", id="an-optimizer-that-steps-twice"),
        pytest.param("aFa", "aFa|", id="an-optimizer-before-any-forward"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_steps_end_with_the_optimizer(calls: str, expected: str) -> None:
    assert marked(calls) == expected


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param("FFF", "F|F|F", id="at-the-next-forward"),
        pytest.param("ffFffFf", "ffF|ffF|f", id="accumulation-under-no-sync"),
        pytest.param("0F1F0F1F", "FF|FF", id="two-modules"),
        pytest.param("0F1F1F0F", "FF|FF", id="a-module-that-runs-twice"),
    ],
)
def test_steps_without_an_optimizer_end_at_the_next_forward(calls: str, expected: str) -> None:
    assert marked(calls, optimizer_alive=False) == expected


def test_an_optimizer_that_exists_but_has_not_stepped_yet_is_waited_for() -> None:
    assert marked("FFFa") == "FFFa|"


def test_an_optimizer_that_appears_later_ends_the_steps_from_then_on() -> None:
    assert marked("FF Fa Fa", optimizer_alive=False) == "F|F|Fa|Fa|"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param("Fa! Fa! Fa!", "Fa|!Fa!|Fa!|", id="the-first-mark-meets-a-step-that-ended-by-itself"),
        pytest.param("FaFa! FaFa!", "Fa|Fa|!FaFa!|", id="two-optimizer-steps-in-one"),
        pytest.param("F! F!", "F!|F!|", id="before-any-optimizer"),
        pytest.param("Fa! f! Fa!", "Fa|!f!|Fa!|", id="whatever-the-step-holds"),
        pytest.param("! f! f! F! f!", "!f!f!F!|f!|", id="but-none-before-the-ranks-first-meet"),
    ],
)
def test_only_the_user_ends_steps_once_they_have_said_so(calls: str, expected: str) -> None:
    assert marked(calls) == expected


def test_the_user_marks_steps_without_an_optimizer() -> None:
    assert marked("F! FF! F!", optimizer_alive=False) == "F!|FF!|F!|"


def test_an_optimizer_that_never_steps_again_is_given_up() -> None:
    """A warm-up head's optimizer stepped once and last; the other one goes on alone."""
    assert marked("Fab" + "Fa" * 120) == "Fa|b" + "Fa" * 50 + "Fa|" * 70
