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


def test_what_the_rank_that_saves_longest_takes_counts_for_the_checkpoint() -> None:
    """Rank 1 waits for rank 0, which saves; then both evaluate."""
    both = StepFlag.SAVED | StepFlag.EVALUATED
    saves = [{}, {}, {"save": 50.0, "evaluation": 150.0, "flags": both}]
    waits = [{}, {}, {"backward": 80.0, "wait": 60.0, "evaluation": 150.0, "flags": StepFlag.EVALUATED}]
    steps = common_steps({0: steps_of(saves), 1: steps_of(waits)})
    assert steps is not None
    assert pauses_in(steps) == (Pause(PauseKind.SAVE, 1, 50 * MS), Pause(PauseKind.EVALUATION, 1, 150 * MS))


def test_recording_and_the_end_of_an_epoch_are_pauses() -> None:
    rows = [{}, {"other": 8.0, "flags": StepFlag.RECORDED}, {"other": 4.0, "flags": StepFlag.RAN_OUT}]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    assert pauses_in(steps) == (Pause(PauseKind.RECORDING, 1, 7 * MS), Pause(PauseKind.EPOCH, 1, 3 * MS))
