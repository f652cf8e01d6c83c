"""Slow-downs of a job, as they are stored in a file: since which step, by how much, on which ranks, and why."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ddpprof.model.int64 import Int64


class SlowdownCause(StrEnum):
    """A reason why steps take longer."""

    OWN_TIME = "own time"
    """some ranks need longer for their own work, and the others wait for them"""
    DATA = "data"
    """ranks wait longer for their batches"""
    LINK = "link"
    """all ranks wait longer for each other, in all-reduces or other collectives, and none needs longer for its own work
    """
    EVERYBODY = "everybody"
    """all ranks need longer for their own work"""
    PROCESSOR = "processor"
    """training threads are runnable but not running"""
    THROTTLED = "throttled"
    """the CPU limit of the control group keeps ranks from running"""
    CLOCK = "clock"
    """cores run at a lower clock rate"""
    PAGING = "paging"
    """memory is read back from a disk"""
    UNKNOWN = "unknown"


class StepPart(StrEnum):
    """A part of a rank's own time in a step."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class StepSlowdown(msgspec.Struct, frozen=True):
    """A period in which steps took longer than normal."""

    first_step: int
    last_step: int | None
    """``None`` if it is still going on"""
    before_ns: Int64
    """length of a normal step, ns"""
    after_ns: Int64
    """length of a slow step, ns"""
    num_steps: int
    """number of steps that this is based on"""
    began_ns: Int64 | None
    """when it began, in ns since 1970"""
    ended_ns: Int64 | None
    cause: SlowdownCause
    ranks: tuple[int, ...]
    """ranks with the cause"""
    part: StepPart | None = None
    """part of the step that grew most, on these ranks"""
    first_gradient_later_ns: Int64 | None = None
    """by how much later these ranks' first gradients arrive, ns; ``None`` if it is negligible"""
    is_coarse: bool = False
    """whether it was found in summaries of many steps, so that its first and last step are only known approximately"""

    @property
    def growth(self) -> float:
        """By how much longer a step takes, as a fraction of the normal step."""
        return self.after_ns / self.before_ns - 1 if self.before_ns else 0.0


class PauseKind(StrEnum):
    """A reason why single steps are longer without being a slow-down."""

    SAVE = "save"
    EVALUATION = "evaluation"
    RECORDING = "recording"
    EPOCH = "epoch"


class Pause(msgspec.Struct, frozen=True):
    """All steps of a job that were longer for the same reason."""

    kind: PauseKind
    num_steps: int
    extra_ns: Int64
    """time that these steps took beyond normal ones, ns"""


class Slowdowns(msgspec.Struct, frozen=True):
    """Content of the file ``slowdowns.json``."""

    slowdowns: tuple[StepSlowdown, ...] = ()
    pauses: tuple[Pause, ...] = ()
