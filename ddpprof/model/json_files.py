"""The small JSON files that ddpprof writes: about a run, its processes and changes tried, and about a network.

`NetBench` is the file of `ddpprof netbench`:

    format           of the file; this is 1
    ddpprof, torch   versions
    created_unix_s   time of the measurement, since 1970
    collective       "all_reduce", "all_gather", "reduce_scatter" or "broadcast"
    dtype            "float32"
    backend, device  of the process group and of the tensors: "gloo" and "cpu", "nccl" and "cuda"
    world_size       number of ranks
    hosts            host of each rank
    sizes            one entry per message size, ascending, each with
                         num_bytes     as counted by nccl-tests: the larger of a rank's input and output
                         longest_ns    per iteration, on the slowest rank, from a barrier to its end
                         shortest_ns   per iteration, on the fastest rank, with less of the barrier's own skew
                         cpu_ns        per rank, median CPU time of all its threads for one iteration
    concurrent       for some of the sizes, two collectives at once, alternating with one alone:
                         num_bytes     of each
                         both_ns       per iteration, on the slowest rank, until both are done
                         alone_ns      the same for one, measured right after
                         cpu_ns        per rank, median CPU time for both
    beside           all-reduces on CPU, for sizes of buckets, while every rank computes:
                         num_bytes
                         taken_ns      per round, computing time that a collective costs the rank that loses most
                         lasted_ns     per round, how long each took, in sequence, with several in flight
    links            links of each rank's machine: `ddpprof.model.links.LinkFacts`
    link_bits_per_s  speed of the link, as stated with --link-speed
    left_out         sizes, in bytes, that were requested but not measured, because a smaller one took too long

Times are nanoseconds. Bandwidths follow from them: `ddpprof.topics.collectives.table`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from ddpprof.model.links import LinkFacts

Int64 = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
"""integer that fits into int64, as does the sum of two"""
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
"""a plausible time in seconds since 1970"""


class TorchrunJob(Struct):
    """The job as torchrun started it; a later attempt recognises the job by this."""

    agent: str | None = None
    """torchrun's process on rank 0's host"""
    run_id: str | None = None
    """torchrun's ``--rdzv-id``; ``None`` if the user gave none"""
    restarts: int | None = None
    host: str | None = None
    pid: int | None = None
    """PID of rank 0"""


class RunFile(Struct):
    format: int
    """`rundir.FORMAT`"""
    run_id: str
    ddpprof: str | None = None
    """version of ddpprof"""
    created_unix_s: UnixSeconds | None = None
    command: list[str] = []
    world_size: int | None = None
    profiled_ranks: str | None = None
    """the rule by which they were chosen; ``None`` if all are profiled, or none"""
    settings: dict[str, Any] = {}
    """the settings from `record.settings` that are shown"""
    attempt: int = 0
    elastic: TorchrunJob | None = None
    is_part: bool = False
    """whether it belongs to a part of the run, on a host that cannot see rank 0's folder"""


class ProcessExit(Struct, frozen=True):
    """How a process ended, as seen by its parent."""

    exit_code: Int64
    """exit code; if negative, the signal that ended it"""
    host: str | None = None
    pid: Int64 | None = None
    rank: Int64 | None = None
    unix_ns: Int64 | None = None
    is_job: bool = False
    """True for the job's first process"""
    interrupted: bool = False
    """True if the user asked it to end"""
    num_oom_kills: Count | None = None
    """number of processes that the kernel killed on the parent's host because memory was full, since the parent started
    or last saw a process fail
    """
    error: str | None = None
    """error message of a rank that ended before it had a DDP module: ``"failed: …"``"""
    place: str | None = None
    """line of the user's code that raised it"""


def last_exit_of_job(exits: Sequence[ProcessExit]) -> ProcessExit | None:
    """Return how the job's first process ended; ``None`` if it may still run."""
    return next((one for one in reversed(exits) if one.is_job), None)


def oom_kills_seen(of_rank: ProcessExit | None, host: str, since_ns: int, exits: Sequence[ProcessExit]) -> int | None:
    """Return the most reliable `num_oom_kills` for a rank of a host: that of its own end or, without one, of the job's.

    `since_ns`: when the rank began, in ns since 1970.
    """
    if of_rank is not None and of_rank.num_oom_kills is not None:
        return of_rank.num_oom_kills
    of_job = (one for one in exits if one.is_job and one.host == host and (one.unix_ns or 0) >= since_ns)
    return next((one.num_oom_kills for one in of_job), None)


class Outcome(StrEnum):
    """The result of trying one change."""

    CONFIRMED = "confirmed"
    """the step is shorter by at least as much as promised"""
    SMALLER = "smaller than promised"
    NO_DIFFERENCE = "no difference"
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"
    """the trials differ by more than the gain; more trials may decide"""
    OTHER_RESULTS = "changes the losses"
    FAILED = "failed"


class Measured(Struct, frozen=True):
    """Measured gain of one change, ns per step; negative if it costs time."""

    gain_ns: int
    low_ns: int | None
    high_ns: int | None
    """upper end of its 95 % interval; ``None`` with fewer than three rounds"""
    outcome: Outcome
    num_rounds: int


class TriedChange(Struct, frozen=True):
    """One change from a run's finding, and its measured gain."""

    rule: str
    code: str
    """the change, as written in the finding"""
    measured: Measured


class CaptureRequest(Struct, frozen=True):
    """A request to profile steps of a running job."""

    steps: Annotated[int, Meta(ge=1, le=1000)] = 5
    profiler: bool = True
    """``False`` for light recording only"""
    record_shapes: bool = False
    with_stack: bool = False
    profile_memory: bool = False
    slower_than: Annotated[float, Meta(gt=1.0, le=1000.0)] | None = None
    """wait until a step takes this many times as long as usual; ``None`` to begin at once"""


class CaptureAnswer(Struct, frozen=True):
    """One event of a request."""

    refused: str | None = None
    """why nothing will be captured"""
    armed: bool = False
    """True once the job waits for the next slow-down"""
    number: int | None = None
    """number of the capture, from 1"""
    first_step: int | None = None
    """first profiled step, known when all ranks have agreed on it"""
    folder: str | None = None
    """folder of the capture, once all ranks have written it"""


NETBENCH_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Times of one message size."""

    num_bytes: int
    longest_ns: tuple[int, ...]
    shortest_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConcurrentTimes:
    """Times of two concurrent collectives of one size."""

    num_bytes: int
    both_ns: tuple[int, ...]
    alone_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BesideTimes:
    """Times of collectives of one size during a computation."""

    num_bytes: int
    taken_ns: tuple[int, ...]
    lasted_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NetBench:
    format: int
    ddpprof: str
    torch: str
    created_unix_s: float
    collective: str
    dtype: str
    backend: str
    device: str
    world_size: int
    hosts: tuple[str, ...]
    sizes: tuple[CollectiveTimes, ...]
    concurrent: tuple[ConcurrentTimes, ...]
    left_out: tuple[int, ...]
    beside: tuple[BesideTimes, ...] = ()
    links: tuple[LinkFacts, ...] = ()
    link_bits_per_s: int | None = None
