"""The verdict on a job that hangs or has failed: the cause, where it is, and who waits. Stored as ``hang.json``."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ddpprof.model.json_files import Count, Int64

VERDICT_FORMAT = 1


class Fault(StrEnum):
    """A kind of fault that can hold up a job."""

    DIED = "died"
    """a rank's process has ended with an error or a signal"""
    DOES_NOT_EXIT = "does-not-exit"
    """training has ended on all ranks, and the process of one has not exited"""
    ENDED_EARLY = "ended-early"
    """a rank has left the training loop, for example because it has no more batches"""
    FEWER_PASSES = "fewer-passes"
    """a rank has skipped a backward pass that others took part in"""
    MISSING_COLLECTIVE = "missing-collective"
    """a rank has not called a collective that others have called"""
    OTHER_COLLECTIVE = "other-collective"
    """a rank calls a collective that the others do not call"""
    MISMATCH = "mismatch"
    """at the same time, the ranks have called collectives that do not match"""
    EVALUATES_ALONE = "evaluates-alone"
    """a rank evaluates with the DDP module, whose forward waits for ranks that do not call it"""
    OWN_CODE = "own-code"
    """a rank is busy, or sleeps, in the script's own code"""
    LOCK = "lock"
    """a rank waits for a lock, a queue or another process"""
    LOADER = "loader"
    """a rank waits for its `DataLoader`"""
    STORAGE = "storage"
    """a rank waits for a disk, or saves"""
    STOPPED = "stopped"
    """a rank's process is stopped by a signal"""
    SWAPPING = "swapping"
    """a rank's memory is being read back from swap"""
    TRACED = "traced"
    """a debugger holds a rank's process"""
    INTERPRETER_HELD = "interpreter-held"
    """C code holds Python's GIL"""
    LINK = "link"
    """all ranks wait for each other at the same place: no data arrives any more"""
    UNKNOWN = "unknown"


class Hint(StrEnum):
    """A fact that the advice depends on, where the kind of fault alone would be misleading."""

    FROZEN = "frozen"
    """the rank's control group is frozen"""
    LEFT_LOOP = "left-loop"
    """the rank left the training loop before its data ran out, or has no `DataLoader`"""
    ERROR_IN_FLIGHT = "error-in-flight"
    """the rank is handling an error while it waits"""
    OTHER_ORDER = "other-order"
    """ranks call collectives of several process groups in different orders"""
    OF_PEERS = "of-peers"
    """the rank waits for another one in ``send`` or ``recv``"""
    STATIC_GRAPH = "static-graph"
    """DDP has ``static_graph=True``, and the set of parameters used in a step has changed"""
    SKIPPED_COLLECTIVE = "skipped-collective"
    """the rank has called the collective in earlier steps"""
    TIMED_OUT = "timed-out"
    """collectives of the other ranks timed out while they waited for the rank"""
    DIFFERENT_ROOTS = "different-roots"
    """ranks have given different roots to a collective in which one rank sends to, or receives from, all others"""
    OTHER_AMOUNT = "other-amount"
    """the rank calls the same collective as the others, with another amount of data"""
    WITHIN_BACKWARD = "within-backward"
    """the rank is in the backward pass in which it has skipped a reduction"""
    EXTRA_PASS = "extra-pass"  # noqa: S105 (no password)
    """the rank has begun more backward passes, in fewer steps, than another one"""
    LATE_FOR_BARRIER = "late-for-barrier"
    """the ``monitored_barrier()`` of other ranks names the rank"""
    WAITS_FOR_INPUT = "waits-for-input"
    WAITS_OUTSIDE = "waits-outside"
    """the rank waits for the network, a pipe or a file, or polls for something"""
    TERMINATED = "terminated"
    """SIGTERM ended the rank, before any other rank ended"""
    CRASHED = "crashed"
    """a signal raised by the CPU ended the rank, such as SIGSEGV"""
    UNSEEN_END = "unseen-end"
    """it is not known how the rank's process ended"""
    ENDED_SILENTLY = "ended-silently"
    """the rank's process was not seen to fail, although the ends of others were seen, so its exit code was probably 0
    """


class Verdict(Struct, frozen=True):
    """A verdict on a job: the fault, where it is, and who waits. Fields are ``None`` if unknown."""

    fault: Fault
    rank: int | None = None
    """rank at fault; ``None`` if there is none (as for a link) or if it is all ranks (as when all are stopped)"""
    host: str | None = None
    pid: int | None = None
    step: int | None = None
    activity: str | None = None
    """activity of the rank, as a name of `Activity` in lower case"""
    place: str | None = None
    """innermost line of the user's code on that rank, as ``file:line in function``"""
    module: str | None = None
    """class of the DDP module of the bucket"""
    bucket: int | None = None
    """first bucket that the waiting ranks have launched and this rank has not"""
    parameters: tuple[str, ...] = ()
    """names of the bucket's parameters"""
    waiting: tuple[int, ...] = ()
    """ranks that wait"""
    waiting_at: str | None = None
    """where the first of them waits, in the format of `place`"""
    since_unix_ns: Int64 | None = None
    """time since which the first of them waits"""
    detail: str | None = None
    """further details, in words"""
    usual_ns: Int64 | None = None
    """usual length of a step, ns"""
    has_failed: bool = False
    """whether the job has ended because of the fault"""
    exit_code: int | None = None
    """exit code of a dead rank; if negative, the signal that ended it"""
    num_oom_kills: Count | None = None
    """number of processes that the kernel killed on the rank's host because memory was full; see `ProcessExit`"""
    at_unix_ns: Int64 | None = None
    """time of the verdict"""
    resumed_unix_ns: Int64 | None = None
    """time at which the job continued"""
    hint: Hint | None = None
    """fact that the advice depends on"""
    nccl: str | None = None
    """what differs between the ranks according to NCCL's RAS, in words"""
    format: int = VERDICT_FORMAT
    """version of this layout"""


class Standstill(Struct, frozen=True):
    """A job that stands still but is not reported to hang: a rank pauses on purpose, or has just continued."""

    waited_s: float
    rank: int | None = None
    """rank that pauses, if it is a single one"""
    step: int | None = None
    waits_for: str | None = None
    """what the rank waits for outside the job, in words; ``None`` if it works, or is between two activities"""
    place: str | None = None
    """innermost line of the user's code on that rank"""
    waiting: tuple[int, ...] = ()
    """ranks that wait for it"""
    hangs_after_s: float | None = None
    """time after which this is reported as a hang; ``None`` if never"""
