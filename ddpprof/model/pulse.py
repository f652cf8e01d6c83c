"""A rank's pulse: what it is doing, and how its steps went. The recorder writes it, everybody else reads it.

It has a state, and tables of the last steps, of all steps in summaries, and of what the machine gave to the process.
`pulse_layout` has the layout of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

import msgspec
import numpy as np

from ddpprof.model.interruptible_enum import InterruptibleEnum
from ddpprof.model.tables import UNKNOWN, Int64Column, rows_of


class Activity(IntEnum, metaclass=InterruptibleEnum):
    """An activity of a rank's training thread."""

    OTHER = 0
    """the script's own code between all others"""
    DATA = 1
    """waiting for a batch"""
    FORWARD = 2
    BACKWARD = 3
    """backward pass, with the waiting for its all-reduces"""
    OPTIMIZER = 4
    SAVE = 5
    """``torch.save``"""
    EVALUATION = 6
    """a forward without gradients"""


class StepFlag(IntFlag, metaclass=InterruptibleEnum):
    """A reason why a step may take longer than others, without being a slow-down."""

    RECORDED = 1
    """ddpprof profiled the step, or recorded it otherwise"""
    SAVED = 2
    """the step contains a ``torch.save``"""
    EVALUATED = 4
    """the step contains an evaluation: forwards without gradients, or a pass over a ``DataLoader`` for one"""
    BEGAN_EPOCH = 8
    """a pass over a ``DataLoader`` began in the step"""
    RAN_OUT = 16
    """a ``DataLoader`` had no more batches"""


class Ended(IntEnum, metaclass=InterruptibleEnum):
    NOT_YET = 0
    FINISHED = 1
    FAILED = 2
    INTERRUPTED = 3
    UNWATCHED = 4
    """ddpprof stopped recording, while training went on"""


class PulseIdentity(msgspec.Struct, frozen=True):
    """The rank, and the process, to which a pulse belongs."""

    run_id: str
    rank: int
    world_size: int
    host: str
    machine_id: str
    """id by which a reader knows whether the process is on the same machine, and in the same container"""
    pid: int
    created_ns: int
    shared: str
    """path of the pulse in memory, which is newer than the copy in the run directory while the rank lives"""
    kept: str
    """path of the copy in the run directory"""
    local_rank: int | None = None
    device: str | None = None
    first_step: int = 0
    """number of the first step with a row"""


@dataclass(frozen=True, slots=True)
class PulseState:
    """The state of a rank at one moment. Times are ns since 1970. The order of the fields is that of the file."""

    activity: int
    """an `Activity`"""
    since_ns: int
    """beginning of the activity, which is the last event of the training thread"""
    step: int
    """number of the current step, and so of finished ones"""
    step_since_ns: int
    module: int
    """index of the DDP module that launched the last bucket; this and the next two are found for overdue steps only"""
    bucket: int
    """bucket of the last all-reduce of this backward pass; `UNKNOWN` before the first, or if torch does not tell"""
    bucket_ns: int
    """launch of that bucket"""
    num_steps: int
    """number of finished steps that have, or had, a row; they get it within a quarter of a second, or later if a disk
    does not answer"""
    num_summaries: int
    steps_per_summary: int
    num_samples: int
    """number of samples so far"""
    ended: int
    """an `Ended`"""
    ended_ns: int
    tick_ns: int
    """last time that ddpprof's own thread ran, which it does every second unless the process cannot run"""
    stack_ns: int
    """time at which the stack was written; `UNKNOWN` if the current step is not overdue"""
    num_passes: int
    """number of synchronising backward passes that this rank has begun"""
    flags: int
    """`StepFlag` of the current step so far"""
    nonfinite_step: int
    """number of the first step in which the loss was NaN or infinite; `UNKNOWN` if there is none.

    Only losses on CPU are looked at, since the training would have to wait for one on an accelerator, and not those of
    profiled steps."""
    num_nonfinite: int
    """number of such steps so far"""
    finite_step: int
    """number of the last step before these whose loss was looked at and finite; `UNKNOWN` if there is none"""
    evaluates: int
    """1 if all DDP modules were in evaluation mode when the stack was written, else 0"""
    num_unpaired: int
    """number of forwards that were to be followed by a backward pass, and were not, beyond those that every step has"""
    unpaired_step: int
    """number of the first step with such a forward, if there is one"""
    exits: int
    """1 if the process began to exit when the training ended; 0 if it goes on, as after a ``with`` block"""

    @property
    def last_ns(self) -> int:
        """Return the time of the last sign of the rank."""
        return max(self.since_ns, self.tick_ns, self.ended_ns)


@dataclass(frozen=True, slots=True)
class PulseSteps:
    """Columns of the last steps, shape (steps,), in their order. Durations are in ns."""

    number: Int64Column
    start_ns: Int64Column
    length_ns: Int64Column
    data_ns: Int64Column
    forward_ns: Int64Column
    backward_ns: Int64Column
    """backward passes with their waiting, and the waiting for buffers and for collectives of the script"""
    optimizer_ns: Int64Column
    save_ns: Int64Column
    evaluation_ns: Int64Column
    wait_ns: Int64Column
    """waiting for other ranks: from a backward pass's last gradient to the end of the pass, in DDP's broadcast of
    buffers, and in collectives of the script; `UNKNOWN` where gradients were not looked at"""
    first_gradient_ns: Int64Column
    """from the beginning of the last backward pass to its first gradient; `UNKNOWN` where `wait_ns` is"""
    flags: Int64Column
    """`StepFlag`"""

    @property
    def own_ns(self) -> Int64Column:
        """Time that the rank needed by itself: the step without its waiting for other ranks, where that is known."""
        return self.length_ns - np.maximum(self.wait_ns, 0)

    def with_all_waiting(self) -> PulseSteps:
        """Return the steps with an estimate where they did not look at their waiting; if none did, unchanged.

        It is what a step's backward passes took longer than the others compute in theirs.
        """
        known = self.wait_ns != UNKNOWN
        if known.all() or not known.any():
            return self
        computing_ns = int(np.median((self.backward_ns - self.wait_ns)[known]))
        computing_ns = max(0, min(computing_ns, int(self.length_ns.max())))  # a damaged file may hold any number
        return replace(self, wait_ns=np.where(known, self.wait_ns, np.maximum(self.backward_ns - computing_ns, 0)))

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class PulseSummaries:
    """Columns of summaries, shape (summaries,), in the order of their steps. Durations are in ns, per step."""

    first_step: Int64Column
    num_steps: Int64Column
    start_ns: Int64Column
    end_ns: Int64Column
    median_ns: Int64Column
    """median length of the steps without a `StepFlag`, or of all if every step has one"""
    longest_ns: Int64Column
    data_ns: Int64Column
    """mean over the steps, as for the columns below"""
    forward_ns: Int64Column
    backward_ns: Int64Column
    optimizer_ns: Int64Column
    wait_ns: Int64Column
    memory_bytes: Int64Column
    """memory of the process at the last sample"""
    num_flagged: Int64Column
    """number of steps with a `StepFlag`"""

    def __len__(self) -> int:
        return len(self.first_step)


@dataclass(frozen=True, slots=True)
class PulseSamples:
    """Columns of samples, shape (samples,), in their order. Sums count from the beginning of the process or machine."""

    at_ns: Int64Column
    memory_bytes: Int64Column
    """resident memory of the process"""
    throttled_ns: Int64Column
    """time for which the control group's processes were kept from running by its limit"""
    queued_ns: Int64Column
    """time for which threads of the process were ready and had no processor, in sum"""
    major_faults: Int64Column
    """number of page faults that were read from a disk"""
    core_khz: Int64Column
    """clock rate of the cores, on average"""
    cpu_ns: Int64Column
    """processor time of the training thread"""

    def __len__(self) -> int:
        return len(self.at_ns)


@dataclass(frozen=True, slots=True)
class Pulse:
    identity: PulseIdentity
    state: PulseState
    stack: str | None
    """where the training thread stands, innermost frame last, while a step is overdue"""
    steps: PulseSteps
    summaries: PulseSummaries
    samples: PulseSamples


def joined(one: PulseSummaries) -> PulseSummaries:
    """Return half as many summaries: each two neighbours become one. Their number must be even."""
    first, second = (rows_of(one, slice(start, None, 2)) for start in (0, 1))
    num_steps = first.num_steps + second.num_steps

    def mean(name: str) -> Int64Column:
        values = getattr(first, name) * first.num_steps + getattr(second, name) * second.num_steps
        known = (getattr(first, name) != UNKNOWN) & (getattr(second, name) != UNKNOWN)
        return np.where(known, values // np.maximum(num_steps, 1), UNKNOWN)

    means = ("median_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "wait_ns")
    return PulseSummaries(
        **{name: mean(name) for name in means},
        first_step=first.first_step,
        num_steps=num_steps,
        start_ns=first.start_ns,
        end_ns=second.end_ns,
        longest_ns=np.maximum(first.longest_ns, second.longest_ns),
        memory_bytes=second.memory_bytes,
        num_flagged=first.num_flagged + second.num_flagged,
    )


def summary_of(steps: PulseSteps, memory_bytes: int) -> tuple[int, ...]:
    """Return the row of `PulseSummaries` for these steps, which are one or more."""
    usual = steps.length_ns[steps.flags == 0]
    lengths = usual if len(usual) else steps.length_ns
    waits = steps.with_all_waiting().wait_ns
    return (
        int(steps.number[0]),
        len(steps),
        int(steps.start_ns[0]),
        int(steps.start_ns[-1] + steps.length_ns[-1]),
        int(np.median(lengths)),
        int(steps.length_ns.max()),
        *(int(column.mean()) for column in (steps.data_ns, steps.forward_ns, steps.backward_ns, steps.optimizer_ns)),
        int(waits.mean()) if (waits != UNKNOWN).all() else UNKNOWN,
        memory_bytes,
        int((steps.flags != 0).sum()),
    )


def usual_ns(steps: PulseSteps, fewest: int = 1) -> int | None:
    """Return the median length of the steps in which nothing special happened, or of all if too few are such.

    `fewest`: least number of steps for a median; ``None`` if there are fewer.
    """
    usual = steps.length_ns[steps.flags == 0]
    lengths = usual if len(usual) >= fewest else steps.length_ns
    return int(np.median(lengths)) if len(lengths) >= fewest else None


OVERDUE_S = 5.0
OVERDUE_TIMES = 10
"""a step is overdue if it takes this many times as long as usual, and at least `OVERDUE_S`"""


def overdue_after_s(usual_s: float) -> float:
    """Return for how many seconds a step may last whose usual length is known."""
    return max(OVERDUE_S, OVERDUE_TIMES * usual_s)


def activity_word(number: int) -> str | None:
    """Return the activity in a word; ``None`` for a number that has no meaning."""
    return _ACTIVITY_WORDS.get(number)


_ACTIVITY_WORDS = {one.value: one.name.lower() for one in Activity}
