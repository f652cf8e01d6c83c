"""Slow-downs of a job, as they are written into a file: since which step, how much, on which ranks, and why."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ddpprof.model.int64 import Int64


class SlowdownCause(StrEnum):
    """A reason why steps take longer."""

    OWN_TIME = "own time"
    """some ranks need longer for themselves, and the others wait for them"""
    DATA = "data"
    """ranks wait longer for their batches"""
    LINK = "link"
    """all ranks wait longer for each other, in all-reduces or other collectives, and none needs longer for itself"""
    EVERYBODY = "everybody"
    """all ranks need longer for themselves"""
    PROCESSOR = "processor"
    """training threads are ready to run, and have no processor"""
    THROTTLED = "throttled"
    """the control group's limit keeps ranks from running"""
    CLOCK = "clock"
    """cores run at a lower rate"""
    PAGING = "paging"
    """memory is read back from a disk"""
    UNKNOWN = "unknown"


class StepPart(StrEnum):
    """A part of a step, of which a rank's own time consists."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class StepSlowdown(msgspec.Struct, frozen=True):
    """A time in which steps took longer than normal."""

    first_step: int
    last_step: int | None
    """``None`` if it lasts"""
    before_ns: Int64
    """length of a normal step"""
    after_ns: Int64
    """length of a slow step"""
    num_steps: int
    """number of steps that say so"""
    began_ns: Int64 | None
    """when it began, in ns since 1970"""
    ended_ns: Int64 | None
    cause: SlowdownCause
    ranks: tuple[int, ...]
    """ranks with the cause"""
    part: StepPart | None = None
    """part of the step that grew most, on these ranks"""
    first_gradient_later_ns: Int64 | None = None
    """by how much later these ranks' first gradients come; ``None`` if that is not notable"""
    is_coarse: bool = False
    """found in summaries of many steps, so that the steps are known only to the summary"""

    @property
    def growth(self) -> float:
        """How much longer a step takes, as a share of the normal step."""
        return self.after_ns / self.before_ns - 1 if self.before_ns else 0.0


class PauseKind(StrEnum):
    """A reason why single steps are longer without being a slow-down."""

    SAVE = "save"
    EVALUATION = "evaluation"
    RECORDING = "recording"
    EPOCH = "epoch"


class Pause(msgspec.Struct, frozen=True):
    """All steps of a job that were longer for one reason."""

    kind: PauseKind
    num_steps: int
    extra_ns: Int64
    """time that these steps took beyond normal ones"""


class Slowdowns(msgspec.Struct, frozen=True):
    """Content of the file ``slowdowns.json``."""

    slowdowns: tuple[StepSlowdown, ...] = ()
    pauses: tuple[Pause, ...] = ()
