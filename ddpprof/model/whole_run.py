"""A summary of a whole training from the pulses of its ranks, with its slow-downs: since which step, and why.

Times are ns since 1970, lengths ns per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from ddpprof.model.hang import Verdict
from ddpprof.model.json_files import Int64


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
        """Increase in step time, as a fraction of the normal step time."""
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


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of consecutive steps. Each part of a step is given as its mean over the range."""

    first_step: int
    num_steps: int
    start_ns: int
    end_ns: int
    median_ns: int
    """median length of the steps in which nothing special happened (a save, an evaluation, ddpprof's own recording)"""
    longest_ns: int
    data_ns: int
    forward_ns: int
    backward_ns: int
    """backward passes, including all waiting for other ranks"""
    optimizer_ns: int
    wait_ns: int | None
    """waiting for other ranks: from the last gradient to the end of the backward pass, in DDP's broadcast of buffers,
    and in the script's collectives; ``None`` if unknown
    """
    memory_bytes: int | None
    """resident memory of the process at the last sample"""
    num_flagged: int
    """number of steps in which something special happened"""

    @property
    def mean_ns(self) -> int:
        return round((self.end_ns - self.start_ns) / self.num_steps)

    @property
    def own_ns(self) -> int:
        """Return the time that the rank needed by itself, ns per step: the step without its waiting for other ranks."""
        return self.mean_ns - (self.wait_ns or 0)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the curve of step lengths over time; represents some consecutive steps."""

    start_ns: int
    first_step: int
    num_steps: int
    median_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class LongStep:
    """One of the longest steps that are still stored individually."""

    step: int
    start_ns: int
    length_ns: int
    why: tuple[str, ...]
    """special events in the step: ``"recorded"``, ``"saved"``, ``"evaluated"``, ``"began an epoch"``"""


@dataclass(frozen=True, slots=True)
class NonfiniteSteps:
    """The steps of a rank whose loss was NaN or infinite, as far as losses were read."""

    first_step: int
    num_steps: int
    follows_finite: bool
    """whether the loss of the step before `first_step` was seen to be finite"""


@dataclass(frozen=True, slots=True)
class RankWholeRun:
    """One rank's whole training, from the first recorded step on."""

    rank: int
    host: str
    created_ns: int
    """when the rank began to record its pulse"""
    first_step: int
    """number of the first step in the pulse"""
    num_steps: int
    """number of finished steps, including those before the first step in the pulse; also the number of the step it was
    in
    """
    last_ns: int
    """last sign of life of the process"""
    ended: str | None
    """``"finished"``, ``"failed"``, ``"interrupted"``, ``"unwatched"`` (ddpprof stopped recording); ``None`` if unknown
    """
    activity: str
    """last activity of the training thread, such as ``"backward"``"""
    activity_since_ns: int
    whole: Stretch | None
    """all steps in the pulse; ``None`` if there are none"""
    stretches: tuple[Stretch, ...] = ()
    """about ten stretches with equal numbers of steps"""
    curve: tuple[CurvePoint, ...] = ()
    """step lengths over time, in at most 200 points"""
    longest: tuple[LongStep, ...] = ()
    """longest steps, longest first"""
    first_memory_bytes: int | None = None
    """resident memory of the process at the first known sample"""
    last_memory_bytes: int | None = None
    """resident memory at the last sample"""
    memory_growth_bytes: int | None = None
    """growth of memory between samples, except while ddpprof recorded steps; ``None`` without two samples"""
    own_ns_of_stretches: tuple[int, ...] = ()
    """median time per step that the rank needed by itself: the step without its waiting for other ranks. One value for
    each of ten stretches with about the same number of steps; empty if there are fewer, or if that waiting is unknown
    """
    num_unpaired: int = 0
    """number of forwards without a backward pass, beyond those that every step has"""
    unpaired_step: int | None = None
    """number of the first step with such a forward"""
    num_passes: int = 0
    """number of synchronising backward passes that it has begun"""
    nonfinite: NonfiniteSteps | None = None
    """``None`` if no step had such a loss"""
    queued_ns: int | None = None
    """total time for which its threads were runnable but not running, between the first and the last stored sample;
    ``None`` without two samples
    """
    sampled_ns: int = 0
    """time between these samples"""
    cpu_ns: int | None = None
    """CPU time of the training thread between these samples; ``None`` if unknown"""

    @property
    def busy_share(self) -> float | None:
        """Return the share of time in which the training thread ran or threads of the rank waited for a core."""
        if self.queued_ns is None or self.cpu_ns is None or not self.sampled_ns:
            return None
        return (self.queued_ns + self.cpu_ns) / self.sampled_ns


@dataclass(frozen=True, slots=True)
class WholeRun:
    """The whole training, from the first step in the ranks' pulses."""

    num_steps: int
    """number of finished steps of the rank that is furthest ahead, including those before the first step in the pulse
    """
    first_step: int
    """number of the first step in the pulse"""
    duration_ns: int
    """time from the beginning of the pulses to their end"""
    ranks: tuple[RankWholeRun, ...]
    """ranks with a pulse; only the first one with steps has its course over time, because DDP keeps the ranks in step
    """
    slowdowns: tuple[StepSlowdown, ...] = ()
    """periods in which steps took longer without a known pause, in order"""
    pauses: tuple[Pause, ...] = ()
    """time taken by checkpoints, evaluation, recording and new epochs"""
    hang: Verdict | None = None
    """last verdict on a hang of the job"""
    captures: tuple[int, ...] = ()
    """numbers of the runs, such as ``capture-1``, that ``ddpprof capture`` requested"""

    @property
    def shown(self) -> RankWholeRun | None:
        """Return the rank whose steps represent the job's; ``None`` if no step was recorded."""
        return next((one for one in self.ranks if one.whole is not None), None)

    @property
    def steps(self) -> Stretch | None:
        """Return all recorded steps of that rank as one stretch."""
        return self.shown.whole if self.shown is not None else None
