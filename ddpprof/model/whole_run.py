"""Summary of a whole training run, made from the pulse files of its ranks, with slowdowns and their causes.

Times are in ns since 1970, and durations are in ns per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import msgspec

from ddpprof.model.hang import Verdict
from ddpprof.model.json_files import Int64


class SlowdownCause(StrEnum):
    """The cause of a slowdown."""

    OWN_TIME = "own time"
    """some ranks take longer for their own work, and the other ranks wait for them"""
    DATA = "data"
    """ranks wait longer for their batches"""
    LINK = "link"
    """all ranks wait longer in collectives, and no rank takes longer for its own work"""
    EVERYBODY = "everybody"
    """all ranks take longer for their own work"""
    PROCESSOR = "processor"
    """training threads wait for a free CPU core"""
    THROTTLED = "throttled"
    """ranks are throttled by the CPU limit of their control group"""
    CLOCK = "clock"
    """CPU cores run at a lower clock rate"""
    PAGING = "paging"
    """memory is swapped in from a disk"""
    THREAD = "thread"
    """training threads wait for another thread of their process, probably one that holds Python's GIL"""
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
    """number of the last slow step; ``None`` if the slowdown has not ended"""
    before_ns: Int64
    """duration of a normal step, in ns"""
    after_ns: Int64
    """duration of a slow step, in ns"""
    num_steps: int
    """number of slow steps from which `after_ns` was computed"""
    began_ns: Int64 | None
    """start of the slowdown, in ns since 1970"""
    ended_ns: Int64 | None
    cause: SlowdownCause
    ranks: tuple[int, ...]
    """ranks on which the cause was found"""
    part: StepPart | None = None
    """part of the step whose duration increased most on `ranks`; ``None`` if no part has half of the increase"""
    first_gradient_later_ns: Int64 | None = None
    """how much later than in normal steps the first gradient is ready on `ranks`, in ns; ``None`` if negligible"""
    is_coarse: bool = False
    """whether the slowdown was found in summaries of many steps; its first and last step are then approximate"""

    @property
    def growth(self) -> float:
        """Increase in step time, as a fraction of the normal step time."""
        return self.after_ns / self.before_ns - 1 if self.before_ns else 0.0


class PauseKind(StrEnum):
    """A reason, other than a slowdown, why single steps take longer."""

    SAVE = "save"
    EVALUATION = "evaluation"
    RECORDING = "recording"
    EPOCH = "epoch"
    COMPILATION = "compilation"
    UNKNOWN = "unknown"


class Pause(msgspec.Struct, frozen=True):
    """All steps of a job that were longer for the same reason."""

    kind: PauseKind
    num_steps: int
    extra_ns: Int64
    """total additional time of the longer steps compared with normal steps, in ns"""
    every: int | None = None
    """number of steps from one of the longer steps to the next, if it is constant; set only for the kind ``UNKNOWN``"""
    part: StepPart | None = None
    """part of the step that takes most of the additional time; ``None`` if unknown, or if the time is not spent in a
    rank's own work
    """
    ranks: tuple[int, ...] = ()
    """ranks on which `part` takes longer; the other ranks wait for them. For the kind ``SAVE``: ranks that save"""
    every_ns: Int64 | None = None
    """time from one of the longer steps to the next, if it is constant; set only for the kind ``UNKNOWN``"""
    grows_ns: tuple[Int64, Int64] | None = None
    """additional time of the first and of the last of the longer steps, if it becomes longer and longer; set only for
    the kind ``EVALUATION``
    """


class UnevenWork(msgspec.Struct, frozen=True):
    """Ranks that take turns at being the slowest rank, for example because their batches differ in size."""

    lost_ns: Int64
    """excess of the slowest rank's own time over the mean own time of all ranks, in ns; mean over the steps"""
    num_steps: int
    most_often: float
    """fraction of the steps in which a rank is the slowest; maximum over the ranks"""


class Slowdowns(msgspec.Struct, frozen=True):
    """Content of the file ``slowdowns.json``."""

    slowdowns: tuple[StepSlowdown, ...] = ()
    pauses: tuple[Pause, ...] = ()
    uneven: UnevenWork | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of consecutive steps. The time of each part of a step is a mean over these steps."""

    first_step: int
    num_steps: int
    start_ns: int
    end_ns: int
    median_ns: int
    """median duration of the steps without a `StepFlag` (such as a save, an evaluation or recording)"""
    longest_ns: int
    data_ns: int
    forward_ns: int
    backward_ns: int
    """backward passes, including the time spent waiting for other ranks"""
    optimizer_ns: int
    wait_ns: int | None
    """time spent waiting for other ranks: from the last gradient to the end of the backward pass, in DDP's broadcast of
    buffers, and in the script's collectives; ``None`` if unknown
    """
    memory_bytes: int | None
    """resident memory of the process in the last sample of the range"""
    num_flagged: int
    """number of steps with a `StepFlag`: a save, an evaluation, recording by ddpprof, the start or end of an epoch, or
    compilation
    """

    @property
    def num_usual(self) -> int:
        """Number of steps without a `StepFlag`."""
        return self.num_steps - self.num_flagged

    @property
    def mean_ns(self) -> int:
        return round((self.end_ns - self.start_ns) / self.num_steps)

    @property
    def own_ns(self) -> int:
        """Own time of the rank in ns per step: the step time without the time spent waiting for other ranks."""
        return self.mean_ns - (self.wait_ns or 0)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the curve of step durations over time. It represents a range of consecutive steps."""

    start_ns: int
    first_step: int
    num_steps: int
    median_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class LongStep:
    """One of the longest steps among those that are still stored individually."""

    step: int
    start_ns: int
    length_ns: int
    why: tuple[str, ...]
    """reasons for the duration: ``"recorded"``, ``"saved"``, ``"evaluated"``, ``"began an epoch"``, ``"compiled"``"""


@dataclass(frozen=True, slots=True)
class NonfiniteSteps:
    """Steps of a rank with a NaN or infinite loss, among the steps whose loss was read."""

    first_step: int
    num_steps: int
    follows_finite: bool
    """whether the loss of the step before `first_step` was read and was finite"""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Memory of a process that becomes more and more."""

    first_bytes: int
    last_bytes: int
    """resident memory in the second and in the last tenth of the samples (medians)"""
    duration_ns: int
    """time between the first and the last sample"""


@dataclass(frozen=True, slots=True)
class RankWholeRun:
    """Summary of the whole training on one rank, from the first step in its pulse."""

    rank: int
    host: str
    created_ns: int
    """time at which the rank created its pulse file"""
    first_step: int
    """number of the first step in the pulse file"""
    num_steps: int
    """number of finished steps, including steps before the first step in the pulse file; also the number of the current
    step
    """
    last_ns: int
    """time of the process's last known activity"""
    ended: str | None
    """``"finished"``, ``"failed"``, ``"interrupted"``, ``"unwatched"`` (ddpprof stopped recording); ``None`` if unknown
    """
    activity: str
    """last activity of the training thread, such as ``"backward"``"""
    activity_since_ns: int
    whole: Stretch | None
    """summary of all steps in the pulse file; ``None`` if there are no steps"""
    stretches: tuple[Stretch, ...] = ()
    """summaries of about ten ranges with the same number of steps"""
    curve: tuple[CurvePoint, ...] = ()
    """step duration over time, as at most 200 points"""
    longest: tuple[LongStep, ...] = ()
    """longest steps, in descending order of duration"""
    first_memory_bytes: int | None = None
    """resident memory of the process in the first sample with a known value"""
    last_memory_bytes: int | None = None
    """resident memory of the process in the last sample"""
    memory_growth_bytes: int | None = None
    """sum of the memory growth between samples, except while ddpprof recorded steps; ``None`` with fewer than two
    samples
    """
    steady_growth: MemoryGrowth | None = None
    """growth of the process's memory, if it grows steadily"""
    own_ns_of_stretches: tuple[int, ...] = ()
    """median own time per step in each of ten ranges with about the same number of steps. Own time is the step time
    without the time spent waiting for other ranks. Empty with fewer than ten steps, or if the waiting time is unknown
    """
    num_unpaired: int = 0
    """number of forward passes that should have been followed by a backward pass but were not; if the script leaves out
    backward passes in every step, those do not count
    """
    unpaired_step: int | None = None
    """number of the first step with a forward pass counted in `num_unpaired`"""
    num_passes: int = 0
    """number of backward passes with gradient synchronization that the rank has begun"""
    nonfinite: NonfiniteSteps | None = None
    """steps with a NaN or infinite loss; ``None`` if there are none"""
    queued_ns: int | None = None
    """total time for which the rank's threads waited for a CPU core between the first and the last stored sample;
    ``None`` with fewer than two samples
    """
    sampled_ns: int = 0
    """time between the first and the last stored sample"""
    cpu_ns: int | None = None
    """CPU time of the training thread between the first and the last stored sample; ``None`` if unknown"""

    @property
    def busy_share(self) -> float | None:
        """Share of time in which the training thread ran, or threads of the rank waited for a CPU core."""
        if self.queued_ns is None or self.cpu_ns is None or not self.sampled_ns:
            return None
        return (self.queued_ns + self.cpu_ns) / self.sampled_ns


@dataclass(frozen=True, slots=True)
class WholeRun:
    """Summary of the entire training run, beginning with the first step in the ranks' pulses."""

    num_steps: int
    """number of finished steps of the rank that is furthest ahead, including steps before the first step in its pulse
    file
    """
    first_step: int
    """number of the first step in the pulse files"""
    duration_ns: int
    """time from the creation of the first pulse file to the last known activity of any rank"""
    ranks: tuple[RankWholeRun, ...]
    """ranks with a pulse file; only the first of them that has steps has a curve over time, because DDP synchronizes
    the ranks
    """
    slowdowns: tuple[StepSlowdown, ...] = ()
    """periods of longer steps that no known pause explains, in the order of their steps"""
    pauses: tuple[Pause, ...] = ()
    """single steps that took longer, grouped by reason: checkpoints, evaluation, recording, new epochs, compilation, or
    unknown
    """
    uneven: UnevenWork | None = None
    """ranks that take turns at being slowest; ``None`` if a rank's waiting time is unknown, or if there are too few
    steps
    """
    hang: Verdict | None = None
    """the last verdict, if the job hung"""
    captures: tuple[int, ...] = ()
    """numbers of the runs (``capture-1``, …) that were requested with ``ddpprof capture``"""

    @property
    def shown(self) -> RankWholeRun | None:
        """The rank that represents the job; ``None`` if no step was recorded."""
        return next((one for one in self.ranks if one.whole is not None), None)

    @property
    def steps(self) -> Stretch | None:
        """All recorded steps of the rank `shown`, as one range."""
        return self.shown.whole if self.shown is not None else None

    @property
    def usual_step_ns(self) -> int | None:
        """Median duration of the steps without a `StepFlag`, in ns; ``None`` if there are too few of them."""
        steps = self.steps
        return steps.median_ns or None if steps and steps.num_usual >= LEAST_STEPS else None

    @property
    def usual_stretches(self) -> list[Stretch]:
        """Stretches of the rank `shown` in which at least half of the steps have no `StepFlag`."""
        return usual_of(self.shown.stretches if self.shown is not None else ())


def usual_of(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return the stretches in which at least half of the steps have no `StepFlag`."""
    return [one for one in stretches if 2 * one.num_flagged <= one.num_steps]


def share_of_rises(values: Sequence[float]) -> float:
    """Return the share of pairs of values in which the later value is larger: 1 if they only rise, 0.5 by chance."""
    pairs = [later > earlier for earlier, later in combinations(values, 2)]
    return sum(pairs) / len(pairs) if pairs else 0.0


LEAST_STEPS = 20
"""minimum number of steps without a `StepFlag` for a median step time"""
