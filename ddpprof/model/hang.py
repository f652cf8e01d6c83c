"""The verdict on a job that hangs or has failed: the fault, the rank and line of code, and the waiting ranks.

The verdict is stored in ``hang.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from ddpprof.model.json_files import Count, Int64

VERDICT_FORMAT = 1
LONG_START_S = 60.0
"""seconds after which the start of a job is reported as long"""


class Fault(StrEnum):
    """A kind of fault that can make a job hang or fail."""

    DIED = "died"
    """a rank's process has ended with an error or a signal"""
    DOES_NOT_EXIT = "does-not-exit"
    """training has ended on all ranks, but the process of one rank has not exited"""
    ENDED_EARLY = "ended-early"
    """a rank has left the training loop, for example because it has no more batches"""
    FEWER_PASSES = "fewer-passes"
    """a rank has skipped a backward pass that the other ranks have run"""
    MISSING_COLLECTIVE = "missing-collective"
    """a rank has not called a collective that the other ranks have called"""
    OTHER_COLLECTIVE = "other-collective"
    """a rank has called a collective that the other ranks do not call"""
    MISMATCH = "mismatch"
    """the ranks have called different collectives, or the same collective with different arguments"""
    EVALUATES_ALONE = "evaluates-alone"
    """only one rank evaluates the DDP module, and its forward pass waits for the other ranks"""
    OWN_CODE = "own-code"
    """a rank computes or sleeps in the script's own code"""
    LOCK = "lock"
    """a rank waits for a lock, a queue or another process"""
    LOADER = "loader"
    """a rank waits for its `DataLoader`"""
    STORAGE = "storage"
    """a rank waits for a disk, or saves a checkpoint"""
    STOPPED = "stopped"
    """a rank's process is stopped by a signal"""
    SWAPPING = "swapping"
    """a rank's memory is being swapped in"""
    TRACED = "traced"
    """a debugger has stopped a rank's process"""
    INTERPRETER_HELD = "interpreter-held"
    """C code holds Python's GIL"""
    LINK = "link"
    """all ranks wait in the same collective, so the network no longer delivers data"""
    UNKNOWN = "unknown"


class Hint(StrEnum):
    """A fact that changes the advice for a fault."""

    FROZEN = "frozen"
    """the rank's control group is frozen"""
    LEFT_LOOP = "left-loop"
    """the rank left the training loop before its data ran out, or has no `DataLoader`"""
    ERROR_IN_FLIGHT = "error-in-flight"
    """the rank is handling an error while it waits"""
    OTHER_ORDER = "other-order"
    """ranks call collectives of different process groups in different orders"""
    OF_PEERS = "of-peers"
    """the rank waits for another rank in ``send`` or ``recv``, not in a collective"""
    STATIC_GRAPH = "static-graph"
    """DDP has ``static_graph=True``, but the set of parameters used in a step has changed"""
    SKIPPED_COLLECTIVE = "skipped-collective"
    """the rank has called the collective in earlier steps"""
    TIMED_OUT = "timed-out"
    """other ranks' collectives timed out while they waited for the rank"""
    DIFFERENT_ROOTS = "different-roots"
    """ranks have passed different roots (``src`` or ``dst``) to the same collective"""
    OTHER_AMOUNT = "other-amount"
    """the rank has called the same collective as the other ranks, but with a different number of elements"""
    OTHER_LINES = "other-lines"
    """ranks were in collectives that the script calls at different lines"""
    WITHIN_BACKWARD = "within-backward"
    """the rank is still in the backward pass in which it has skipped a reduction"""
    EXTRA_PASS = "extra-pass"  # noqa: S105 (not a password)
    """the rank has begun more backward passes than another rank, but has finished fewer steps"""
    WORKER_AT_LOCK = "worker-at-lock"
    """a `DataLoader` worker of the rank waits for a lock"""
    LATE_FOR_BARRIER = "late-for-barrier"
    """the error of ``monitored_barrier()`` on other ranks names this rank"""
    WAITS_FOR_INPUT = "waits-for-input"
    WAITS_OUTSIDE = "waits-outside"
    """the rank waits for the network, a pipe or a file, or polls in a loop"""
    TERMINATED = "terminated"
    """SIGTERM ended the rank before any other rank had ended"""
    CRASHED = "crashed"
    """the rank was ended by a signal for a CPU fault, such as SIGSEGV"""
    CRASHED_AT_EXIT = "crashed-at-exit"
    """the rank was ended by a signal for a CPU fault after its script had ended"""
    UNSEEN_END = "unseen-end"
    """it is not known how the rank's process ended"""
    ENDED_SILENTLY = "ended-silently"
    """other ranks have recorded a failure and this rank has not, so its process probably exited with 0"""
    HELD_AFTER_TRAINING = "held-after-training"
    """the rank has finished its training, and runs code that holds Python's global interpreter lock"""


class Verdict(Struct, frozen=True):
    """The fault of a job, the rank at fault, the line of code, and the waiting ranks. Unknown fields are ``None``."""

    fault: Fault
    rank: int | None = None
    """rank at fault; ``None`` if no single rank is at fault"""
    host: str | None = None
    pid: int | None = None
    step: int | None = None
    activity: str | None = None
    """what the rank was doing: name of an `Activity`, in lower case"""
    place: str | None = None
    """innermost line of the user's code that the rank was executing, as ``file:line in function``"""
    called_at: str | None = None
    """line of the user's code that called the function at `place`, in the same format"""
    module: str | None = None
    """class of the DDP module to which `bucket` belongs"""
    bucket: int | None = None
    """index of the first bucket that the waiting ranks have launched and this rank has not"""
    parameters: tuple[str, ...] = ()
    """names of the bucket's parameters"""
    waiting: tuple[int, ...] = ()
    """ranks that wait for the rank at fault"""
    waiting_at: str | None = None
    """line of code at which the first waiting rank waits, in the format of `place`"""
    since_unix_ns: Int64 | None = None
    """time at which the first waiting rank began to wait, in ns since 1970"""
    detail: str | None = None
    """further details about the fault, as text"""
    usual_ns: Int64 | None = None
    """usual duration of a step, in ns"""
    has_failed: bool = False
    """whether the job has ended because of the fault"""
    exit_code: int | None = None
    """exit code of the rank, or -N if signal N ended it"""
    num_oom_kills: Count | None = None
    """number of processes on the rank's host that the kernel's OOM killer has ended; see `ProcessExit`"""
    at_unix_ns: Int64 | None = None
    """time of the verdict, in ns since 1970"""
    resumed_unix_ns: Int64 | None = None
    """time at which the job continued, in ns since 1970; ``None`` if it did not"""
    hint: Hint | None = None
    """fact that changes the advice, if there is one"""
    nccl: str | None = None
    """what differs between the ranks according to NCCL's RAS subsystem, as text"""
    format: int = VERDICT_FORMAT
    """version of the file's format"""

    @property
    def is_of_failed_job(self) -> bool:
        """Whether the job has failed because of the fault, and has not continued since."""
        return self.has_failed and self.resumed_unix_ns is None


class Standstill(Struct, frozen=True):
    """A job that makes no progress but does not count as a hang, for example because a rank saves a checkpoint."""

    waited_s: float
    rank: int | None = None
    """rank for which the other ranks wait; ``None`` if they wait for several ranks, or for none"""
    step: int | None = None
    waits_for: str | None = None
    """what the rank waits for outside the job, as text; ``None`` if it does not wait for anything outside the job"""
    place: str | None = None
    """innermost line of the user's code that the rank is executing"""
    waiting: tuple[int, ...] = ()
    """ranks that wait for `rank`, or for the ranks in `absent`"""
    absent: tuple[int, ...] = ()
    """ranks without a pulse, while the ranks in `waiting` wait at `place`"""
    hangs_after_s: float | None = None
    """time without progress after which ddpprof reports a hang; ``None`` if it never does; 0 if it reports the
    hang at once, because the rank waits for nothing outside the job
    """


class StartingJob(Struct, frozen=True):
    """A job of which no rank has begun to train."""

    seconds: float
    """time since the launcher started"""
    ranks: Mapping[int, int]
    """rank → PID, for processes on this host with the environment variable ``RANK``"""
    world_size: int | None = None
    """value of ``WORLD_SIZE`` in these processes; ``None`` if it is not set"""
