from __future__ import annotations

from pulses import MS, steps_of

from ddpprof.model.pulse import StepFlag
from ddpprof.model.slowdown import Pause, PauseKind
from ddpprof.monitor.job_steps import common_steps
from ddpprof.monitor.pauses import pauses_in


def test_each_kind_of_pause_is_counted() -> None:
    rows = [
        {},
        {"other": 101.0, "flags": StepFlag.SAVED},
        {},
        {"other": 31.0, "flags": StepFlag.EVALUATED | StepFlag.BEGAN_EPOCH},
        {},
        {"other": 11.0, "flags": StepFlag.BEGAN_EPOCH},
        {"other": 1.0, "save": 50.0, "evaluation": 150.0, "flags": StepFlag.SAVED | StepFlag.EVALUATED},
        {"other": 1.0, "save": 4.0, "flags": StepFlag.SAVED | StepFlag.BEGAN_EPOCH},
    ]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    assert pauses_in(steps) == (
        Pause(PauseKind.SAVE, 3, 154 * MS),
        Pause(PauseKind.EVALUATION, 2, 180 * MS),
        Pause(PauseKind.EPOCH, 1, 10 * MS),
    )


def test_without_normal_steps_nothing_is_known() -> None:
    steps = common_steps({0: steps_of([{"flags": StepFlag.SAVED}] * 3)})
    assert steps is not None
    assert pauses_in(steps) == ()
