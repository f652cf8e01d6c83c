"""The pulse of a rank: its current activity and the history of its steps. Only the recorder writes pulse files.

A pulse consists of a state and three tables: the most recent steps, summaries of all steps, and samples of the machine
resources that the process uses. `pulse_layout` defines the layout of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

import msgspec
import numpy as np

from ddpprof.model.tables import UNKNOWN, Int64Column, InterruptibleEnum, rows_of


class Activity(IntEnum, metaclass=InterruptibleEnum):
    """An activity of a rank's training thread."""

    OTHER = 0
    """the training thread runs the script's own code, outside of all other activities"""
    DATA = 1
    """the training thread waits for a batch"""
    FORWARD = 2
    BACKWARD = 3
    """backward pass, including the time it spends waiting for its all-reduces"""
    OPTIMIZER = 4
    SAVE = 5
    """``torch.save``"""
    EVALUATION = 6
    """a forward pass without gradients"""


class StepFlag(IntFlag, metaclass=InterruptibleEnum):
    """A reason, other than a slowdown, why a single step may take longer."""

    RECORDED = 1
    """ddpprof recorded the step, with or without the profiler"""
    SAVED = 2
    """the step contains a ``torch.save``"""
    EVALUATED = 4
    """the step contains an evaluation: forward passes without gradients, or a pass over a validation ``DataLoader``"""
    BEGAN_EPOCH = 8
    """a pass over a ``DataLoader`` began in the step"""
    RAN_OUT = 16
    """a ``DataLoader`` had no more batches"""
    COMPILED = 32
    """torch.compile compiled code in the step"""


class Ended(IntEnum, metaclass=InterruptibleEnum):
    NOT_YET = 0
    FINISHED = 1
    FAILED = 2
    INTERRUPTED = 3
    UNWATCHED = 4
    """ddpprof stopped recording while training continued"""


class PulseIdentity(msgspec.Struct, frozen=True):
    """The rank and process to which a pulse belongs."""

    run_id: str
    rank: int
    world_size: int
    host: str
    machine_id: str
    """identifier of the machine and container; a process that reads the pulse compares it with its own identifier"""
    pid: int
    created_ns: int
    shared: str
    """path of the pulse in shared memory; while the rank runs, this pulse is more recent than the copy in the run
    directory
    """
    kept: str
    """path of the pulse's copy in the run directory"""
    local_rank: int | None = None
    device: str | None = None
    first_step: int = 0
    """number of the first step for which the pulse has data"""


@dataclass(frozen=True, slots=True)
class PulseState:
    """The state of a rank at one moment. Times are in ns since 1970. The fields are in the order of the file."""

    activity: int
    """value of `Activity`"""
    since_ns: int
    """start of the activity, which is also the time of the training thread's last event"""
    step: int
    """number of the current step; equal to the number of finished steps, because steps are numbered from 0"""
    step_since_ns: int
    module: int
    """index of the DDP module that launched the last bucket; `module`, `bucket` and `bucket_ns` are set only while a
    step is overdue
    """
    bucket: int
    """index of the bucket that was last launched in this backward pass; `UNKNOWN` before the first launch, or if
    PyTorch does not report it
    """
    bucket_ns: int
    """time at which `bucket` was launched"""
    num_steps: int
    """number of finished steps written to the table of steps, including rows that have been overwritten since. A step
    is written within 0.25 s of its end, or later if a disk does not respond
    """
    num_summaries: int
    steps_per_summary: int
    num_samples: int
    """number of samples written so far"""
    ended: int
    """value of `Ended`"""
    ended_ns: int
    tick_ns: int
    """time at which ddpprof's thread last ran; it runs every second unless the process is prevented from running"""
    stack_ns: int
    """time at which the stack was captured; `UNKNOWN` if the current step is not overdue"""
    num_passes: int
    """number of backward passes with gradient synchronization that this rank has begun"""
    flags: int
    """combined `StepFlag` values of the current step so far"""
    nonfinite_step: int
    """number of the first step with a NaN or infinite loss; `UNKNOWN` if there is none. Only losses on the CPU are
    read, because reading a loss from an accelerator would make training wait. No losses are read in profiled steps.
    """
    num_nonfinite: int
    """number of steps so far with a NaN or infinite loss"""
    finite_step: int
    """number of the last step before `nonfinite_step` whose loss was read and was finite; `UNKNOWN` if there is none"""
    evaluates: int
    """1 if all DDP modules were in evaluation mode when the stack was captured, else 0"""
    num_unpaired: int
    """number of forward passes that should have been followed by a backward pass but were not; if the script leaves out
    backward passes in every step, those do not count
    """
    unpaired_step: int
    """number of the first step with a forward pass counted in `num_unpaired`, if there is one"""
    exits: int
    """1 if the process began to exit when training ended; 0 if the script continued, for example after a
    ``with`` block
    """

    @property
    def last_ns(self) -> int:
        """Time of the rank's last known activity, in ns since 1970."""
        return max(self.since_ns, self.tick_ns, self.ended_ns)


@dataclass(frozen=True, slots=True)
class PulseSteps:
    """Table of the most recent steps, in order. Columns have shape (steps,); durations are in ns."""

    number: Int64Column
    start_ns: Int64Column
    length_ns: Int64Column
    data_ns: Int64Column
    forward_ns: Int64Column
    backward_ns: Int64Column
    """duration of the backward passes, and all time spent waiting for other ranks: for gradients, for buffers, and in
    the script's collectives
    """
    optimizer_ns: Int64Column
    save_ns: Int64Column
    evaluation_ns: Int64Column
    wait_ns: Int64Column
    """time spent waiting for other ranks: from the last gradient to the end of the backward pass, in DDP's broadcast of
    buffers, and in the script's collectives; `UNKNOWN` if ddpprof did not read when gradients were ready
    """
    first_gradient_ns: Int64Column
    """time from the start of the last backward pass to its first gradient; `UNKNOWN` if `wait_ns` is `UNKNOWN`"""
    flags: Int64Column
    """combined `StepFlag` values"""

    @property
    def own_ns(self) -> Int64Column:
        """Own time of the rank in ns: the step time without the time spent waiting for other ranks, if known."""
        return self.length_ns - np.maximum(self.wait_ns, 0)

    def with_all_waiting(self) -> PulseSteps:
        """Return the steps, with an estimate of `wait_ns` where it is unknown.

        If it is unknown in all steps, nothing is changed.

        The estimate is the duration of the step's backward passes minus their median computation time in steps with a
        known `wait_ns`.
        """
        known = self.wait_ns != UNKNOWN
        if known.all() or not known.any():
            return self
        computing_ns = int(np.median((self.backward_ns - self.wait_ns)[known]))
        computing_ns = max(0, min(computing_ns, int(self.length_ns.max())))  # a damaged file may contain any number
        return replace(self, wait_ns=np.where(known, self.wait_ns, np.maximum(self.backward_ns - computing_ns, 0)))

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class PulseSummaries:
    """Table of summaries, in step order. Columns have shape (summaries,); durations are in ns per step."""

    first_step: Int64Column
    num_steps: Int64Column
    start_ns: Int64Column
    end_ns: Int64Column
    median_ns: Int64Column
    """median duration of the steps without a `StepFlag`, or of all steps if every step has one"""
    longest_ns: Int64Column
    data_ns: Int64Column
    """`data_ns`, `forward_ns`, `backward_ns`, `optimizer_ns` and `wait_ns` are means over the steps"""
    forward_ns: Int64Column
    backward_ns: Int64Column
    optimizer_ns: Int64Column
    wait_ns: Int64Column
    memory_bytes: Int64Column
    """resident memory of the process in the last sample before the summary was written"""
    num_flagged: Int64Column
    """number of steps with at least one `StepFlag`"""

    def __len__(self) -> int:
        return len(self.first_step)


@dataclass(frozen=True, slots=True)
class PulseSamples:
    """Table of samples, in order. Columns have shape (samples,).

    Totals count from the start of the process or machine.
    """

    at_ns: Int64Column
    memory_bytes: Int64Column
    """resident memory of the process"""
    throttled_ns: Int64Column
    """total time for which the control group was throttled because of its CPU limit"""
    queued_ns: Int64Column
    """total time for which threads of the process waited for a free CPU core"""
    major_faults: Int64Column
    """number of page faults that required reading from a disk"""
    core_khz: Int64Column
    """mean clock rate of the CPU cores, in kHz"""
    cpu_ns: Int64Column
    """CPU time of the training thread"""
    process_cpu_ns: Int64Column
    """CPU time of all threads of the process"""
    training_queued_ns: Int64Column
    """total time for which the training thread waited for a free CPU core"""

    def __len__(self) -> int:
        return len(self.at_ns)


@dataclass(frozen=True, slots=True)
class Pulse:
    identity: PulseIdentity
    state: PulseState
    stack: str | None
    """stack of the training thread, innermost frame last; available only while a step is overdue"""
    steps: PulseSteps
    summaries: PulseSummaries
    samples: PulseSamples


def joined(one: PulseSummaries) -> PulseSummaries:
    """Merge each pair of adjacent summaries into one summary. The number of summaries must be even."""
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
    """Return the row of `PulseSummaries` that summarizes these steps. At least one step is needed."""
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
    """Return the median length of the steps without a `StepFlag`, or of all steps if too many have a flag.

    `fewest`: number of steps that a median needs. With fewer steps in total, returns ``None``.
    """
    usual = steps.length_ns[steps.flags == 0]
    lengths = usual if len(usual) >= fewest else steps.length_ns
    return int(np.median(lengths)) if len(lengths) >= fewest else None


OVERDUE_S = 5.0
OVERDUE_TIMES = 10
"""a step is overdue after this many times the usual duration of a step, but not before `OVERDUE_S` seconds"""


def overdue_after_s(usual_s: float) -> float:
    """Return the number of seconds after which a step is overdue, given its usual length."""
    return max(OVERDUE_S, OVERDUE_TIMES * usual_s)


def activity_word(number: int) -> str | None:
    """Return the name of the activity in lower case, or ``None`` for an unknown number."""
    return _ACTIVITY_WORDS.get(number)


_ACTIVITY_WORDS = {one.value: one.name.lower() for one in Activity}
