"""A whole training in few numbers, as the pulses of its ranks tell it. Times are ns since 1970, lengths ns per step."""

from __future__ import annotations

from dataclasses import dataclass

from ddpprof.model.hang import Verdict
from ddpprof.model.slowdown import Pause, StepSlowdown


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some consecutive steps. Parts of a step are means over them."""

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
    """backward passes, with all waiting for other ranks"""
    optimizer_ns: int
    wait_ns: int | None
    """waiting for other ranks: from the last gradient to the end of the backward pass, in DDP's broadcast of buffers,
    and in collectives of the script; ``None`` if it is unknown"""
    memory_bytes: int | None
    """resident memory of the process at the last sample"""
    num_flagged: int
    """number of steps in which something special happened"""

    @property
    def mean_ns(self) -> int:
        return round((self.end_ns - self.start_ns) / self.num_steps)

    @property
    def own_ns(self) -> int:
        """Return the time that the rank needed by itself: the step without its waiting for other ranks."""
        return self.mean_ns - (self.wait_ns or 0)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the curve of step lengths over time; stands for some consecutive steps."""

    start_ns: int
    first_step: int
    num_steps: int
    median_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class LongStep:
    """One of the longest steps that are still known one by one."""

    step: int
    start_ns: int
    length_ns: int
    why: tuple[str, ...]
    """special events of the step: ``"recorded"``, ``"saved"``, ``"evaluated"``, ``"began an epoch"``"""


@dataclass(frozen=True, slots=True)
class NonfiniteSteps:
    """The steps of a rank whose loss was NaN or infinite, as far as losses were looked at."""

    first_step: int
    num_steps: int
    follows_finite: bool
    """whether the loss of the step before `first_step` was seen to be finite"""


@dataclass(frozen=True, slots=True)
class RankWholeRun:
    """One rank's whole training, from the first noted step on."""

    rank: int
    host: str
    created_ns: int
    """when the rank began to note"""
    first_step: int
    """number of the first noted step"""
    num_steps: int
    """number of finished steps, with those before the first noted one, and so the number of the step that it was in"""
    last_ns: int
    """last sign of the process"""
    ended: str | None
    """``"finished"``, ``"failed"``, ``"interrupted"``, ``"unwatched"`` (ddpprof stopped noting); ``None`` if unknown"""
    activity: str
    """what the training thread did at last, such as ``"backward"``"""
    activity_since_ns: int
    whole: Stretch | None
    """all noted steps; ``None`` if there are none"""
    stretches: tuple[Stretch, ...] = ()
    """about ten stretches of equally many steps"""
    curve: tuple[CurvePoint, ...] = ()
    """step lengths over time, in at most 200 points"""
    longest: tuple[LongStep, ...] = ()
    """longest steps, the longest first"""
    first_memory_bytes: int | None = None
    """resident memory of the process at the first sample that is known"""
    last_memory_bytes: int | None = None
    """at the last one"""
    memory_growth_bytes: int | None = None
    """by how much it grew between samples, except while ddpprof recorded steps; ``None`` without two samples"""
    own_ns_of_stretches: tuple[int, ...] = ()
    """median time per step that the rank needed by itself: the step without its waiting for other ranks. One for each
    of ten stretches of about equally many steps; none if there are fewer, or if that waiting is unknown"""
    num_unpaired: int = 0
    """number of forwards without a backward pass, beyond those that every step has"""
    unpaired_step: int | None = None
    """number of the first step with one"""
    num_passes: int = 0
    """number of synchronising backward passes that it has begun"""
    nonfinite: NonfiniteSteps | None = None
    """``None`` if no step had such a loss"""
    queued_ns: int | None = None
    """time for which its threads were runnable but not running, in sum, between the first and the last kept sample;
    ``None`` without two samples"""
    sampled_ns: int = 0
    """time between these samples"""


@dataclass(frozen=True, slots=True)
class WholeRun:
    """The whole training, from the first step that ranks noted in their pulses."""

    num_steps: int
    """number of steps that the rank furthest ahead has finished, with those before the first noted one"""
    first_step: int
    """number of the first noted step"""
    duration_ns: int
    """from the beginning of the notes to their end"""
    ranks: tuple[RankWholeRun, ...]
    """ranks with a pulse; only the first one with steps has its course over time, as DDP keeps the ranks in step"""
    slowdowns: tuple[StepSlowdown, ...] = ()
    """times in which steps took longer, without a known pause, in order"""
    pauses: tuple[Pause, ...] = ()
    """what checkpoints, evaluation, recording and new epochs took"""
    hang: Verdict | None = None
    """last verdict on a hang of the job"""
    captures: tuple[int, ...] = ()
    """numbers of the runs, such as ``capture-1``, that ``ddpprof capture`` asked for"""

    @property
    def shown(self) -> RankWholeRun | None:
        """Return the rank whose steps stand for those of the job; ``None`` if no step was noted."""
        return next((one for one in self.ranks if one.whole is not None), None)

    @property
    def steps(self) -> Stretch | None:
        """Return all noted steps of that rank as one stretch."""
        return self.shown.whole if self.shown is not None else None
