"""Slow-downs and pauses in sentences."""

from __future__ import annotations

from datetime import datetime

from ddpprof.model.slowdown import Pause, PauseKind, SlowdownCause, StepPart, StepSlowdown
from ddpprof.words import ranks_in_words

_NS_PER_S = 1e9
_EVERY_RANK = "every rank"

_DOES = {
    StepPart.DATA: "in waiting for batches",
    StepPart.FORWARD: "in forward",
    StepPart.BACKWARD: "in backward",
    StepPart.OPTIMIZER: "in the optimizer",
    StepPart.OTHER: "in the script's own code",
}

_PAUSES = {PauseKind.SAVE: "checkpoints", PauseKind.EVALUATION: "evaluation", PauseKind.EPOCH: "new epochs"}


def slowdown_sentence(slowdown: StepSlowdown, world_size: int) -> str:
    """Return a slow-down in one sentence, with times of this machine's time zone."""
    return f"{_when(slowdown)} {_how_much(slowdown)}: {_why(slowdown, world_size)}"


def _when(slowdown: StepSlowdown) -> str:
    about = "about " if slowdown.is_coarse else ""
    if slowdown.last_step is None:
        return f"since {about}step {slowdown.first_step:,}{_clock(slowdown.began_ns)} steps take"
    return (
        f"from {about}step {slowdown.first_step:,}{_clock(slowdown.began_ns)} to {slowdown.last_step:,}"
        f"{_clock(slowdown.ended_ns)} steps took"
    )


def _clock(at_ns: int | None) -> str:
    if at_ns is None:
        return ""
    return f" ({datetime.fromtimestamp(at_ns / _NS_PER_S).astimezone():%H:%M:%S})"


def _how_much(slowdown: StepSlowdown) -> str:
    before, after = _length(slowdown.before_ns), _length(slowdown.after_ns)
    was = before[0] if before[1] == after[1] else " ".join(before)
    return f"{slowdown.growth:.0%} longer, {was} → {' '.join(after)}"


def _length(ns: int) -> tuple[str, str]:
    """Return a duration with three digits, and its unit."""
    value, unit = (ns / 1e6, "ms") if ns < _NS_PER_S else (ns / _NS_PER_S, "s")
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}", unit


def _why(slowdown: StepSlowdown, world_size: int) -> str:
    ranks, part = slowdown.ranks, slowdown.part
    who = _EVERY_RANK if len(ranks) == world_size and world_size > 1 else ranks_in_words(ranks)
    verb = "needs" if len(ranks) == 1 or who == _EVERY_RANK else "need"
    waits = "waits" if verb == "needs" else "wait"
    where = f" {_DOES[part]}" if part is not None else ""
    late = ""
    if slowdown.first_gradient_later_ns is not None:
        gradient = "its first gradient comes" if len(ranks) == 1 else "their first gradients come"
        late = f", and {gradient} {' '.join(_length(slowdown.first_gradient_later_ns))} later"
    return {
        SlowdownCause.OWN_TIME: f"{who} {verb} longer{where}{late}",
        SlowdownCause.DATA: f"{who} {waits} longer for batches",
        SlowdownCause.LINK: "all ranks wait longer for each other in collectives, and none needs longer by itself",
        SlowdownCause.EVERYBODY: f"{who} {verb} longer{where}",
        SlowdownCause.PROCESSOR: f"{who} {waits} for a free CPU core",
        SlowdownCause.THROTTLED: f"the control group's limit keeps {who} from running",
        SlowdownCause.CLOCK: f"the cores of {who} run at a lower clock rate",
        SlowdownCause.PAGING: f"memory of {who} is read back from a disk",
        SlowdownCause.UNKNOWN: "the cause is not known",
    }[slowdown.cause]


def pause_sentence(pause: Pause) -> str:
    """Return in one sentence what pauses of one kind took. Recorded steps may be long for other reasons."""
    steps = "step" if pause.num_steps == 1 else "steps"
    took_s = pause.extra_ns / _NS_PER_S
    if pause.kind is PauseKind.RECORDING:
        recorded = f"the {pause.num_steps:,} {steps} that ddpprof recorded"
        return f"{recorded} took {took_s:.1f} s longer than the same number of others"
    return f"{_PAUSES[pause.kind]} took {took_s:.1f} s in {pause.num_steps:,} {steps}"
