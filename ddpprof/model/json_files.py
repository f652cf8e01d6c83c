"""The small JSON files that ddpprof writes about a run, its processes, the changes tried, and a network.

`NetBench` is the file written by `ddpprof netbench`:

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
                         longest_ns    per iteration: duration on the slowest rank, from a barrier to the end
                         shortest_ns   per iteration: duration on the fastest rank, less affected by the barrier's skew
                         cpu_ns        per rank: median CPU time of all its threads for one iteration
    concurrent       for some of the sizes, two collectives at the same time, alternating with a single one:
                         num_bytes     size of each
                         both_ns       per iteration: duration on the slowest rank, until both have ended
                         alone_ns      per iteration: duration of the single one, measured directly after
                         cpu_ns        per rank: median CPU time for both
    beside           all-reduces on CPU while every rank computes, for typical bucket sizes:
                         num_bytes     size of each
                         taken_ns      per round: computation time lost per collective on the rank that loses most
                         lasted_ns     per round: duration per collective, with several in flight
    links            links of each rank's machine, as `ddpprof.model.links.LinkFacts`
    link_bits_per_s  speed of the link, given by --link-speed
    left_out         sizes (bytes) that were requested but not measured, because a smaller one took too long

Times are in nanoseconds. `ddpprof.topics.collectives` computes bandwidths from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from ddpprof.model.links import LinkFacts

Int64 = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
"""integer small enough that the sum of two such integers fits into int64"""
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
"""a plausible time in seconds since 1970"""


class TorchrunJob(Struct):
    """Identity of a job started by torchrun. Later attempts use it to find the run directory of the first attempt."""

    agent: str | None = None
    """identifier of the torchrun process on rank 0's host"""
    run_id: str | None = None
    """value of torchrun's option ``--rdzv-id``; ``None`` if not given"""
    restarts: int | None = None
    host: str | None = None
    pid: int | None = None
    """PID of rank 0"""


class RunFile(Struct):
    format: int
    """format version of the run directory: `rundir.FORMAT`"""
    run_id: str
    ddpprof: str | None = None
    """version of ddpprof that recorded the run"""
    created_unix_s: UnixSeconds | None = None
    command: list[str] = []
    world_size: int | None = None
    profiled_ranks: str | None = None
    """description of how the profiled ranks were chosen; ``None`` if all ranks or no ranks are profiled"""
    settings: dict[str, Any] = {}
    """the recorder's settings that the report shows"""
    attempt: int = 0
    elastic: TorchrunJob | None = None
    is_part: bool = False
    """whether this file is in a separate part of the run, written by a host that cannot access rank 0's run
    directory
    """


class ProcessExit(Struct, frozen=True):
    """How a process ended, as recorded by its parent."""

    exit_code: Int64
    """exit code, or -N if signal N ended the process"""
    host: str | None = None
    pid: Int64 | None = None
    rank: Int64 | None = None
    unix_ns: Int64 | None = None
    is_job: bool = False
    """True for the process that the launcher started"""
    interrupted: bool = False
    """True if the user interrupted the job"""
    num_oom_kills: Count | None = None
    """number of processes on the parent's host that the kernel's OOM killer has ended, since the parent's start or
    since the last failed process that the parent recorded
    """
    error: str | None = None
    """error message of a rank that ended before it had created a DDP module: ``"failed: …"``"""
    place: str | None = None
    """line of the user's code that raised the error"""


def last_exit_of_job(exits: Sequence[ProcessExit]) -> ProcessExit | None:
    """Return the exit of the process that the launcher started, or ``None`` if it may still be running."""
    return next((one for one in reversed(exits) if one.is_job), None)


def ended_well(exits: Sequence[ProcessExit]) -> bool:
    """Return False if the process that the launcher started was interrupted or failed."""
    job = last_exit_of_job(exits)
    return job is None or (job.exit_code == 0 and not job.interrupted)


def oom_kills_seen(of_rank: ProcessExit | None, host: str, since_ns: int, exits: Sequence[ProcessExit]) -> int | None:
    """Return the number of OOM kills recorded at the exit of a rank or, if unknown, at the exit of the job on its host.

    `since_ns`: start of the rank, in ns since 1970.
    """
    if of_rank is not None and of_rank.num_oom_kills is not None:
        return of_rank.num_oom_kills
    of_job = (one for one in exits if one.is_job and one.host == host and (one.unix_ns or 0) >= since_ns)
    return next((one.num_oom_kills for one in of_job), None)


class Outcome(StrEnum):
    """The result of trying one change."""

    CONFIRMED = "confirmed"
    """the step became shorter, and the measured gain agrees with the prediction or exceeds it"""
    SMALLER = "smaller than promised"
    NO_DIFFERENCE = "no difference"
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"
    """trials vary by more than the gain, so more trials are needed to show whether there is a gain"""
    OTHER_RESULTS = "changes the losses"
    FAILED = "failed"


class Measured(Struct, frozen=True):
    """Measured gain of one change, in ns per step; negative if steps became longer."""

    gain_ns: int | None
    """measured gain, in ns per step; ``None`` if the job failed in every trial of the change"""
    low_ns: int | None
    high_ns: int | None
    """upper end of the 95 % confidence interval; ``None`` with fewer than three rounds"""
    outcome: Outcome
    num_rounds: int


class TriedChange(Struct, frozen=True):
    """A change that a finding suggested, and its measured gain."""

    rule: str
    code: str
    """code of the change, as written in the finding"""
    measured: Measured


class CaptureRequest(Struct, frozen=True):
    """A request to profile steps of a running job."""

    steps: Annotated[int, Meta(ge=1, le=1000)] = 5
    profiler: bool = True
    """``False``: light recording only"""
    record_shapes: bool = False
    with_stack: bool = False
    profile_memory: bool = False
    slower_than: Annotated[float, Meta(gt=1.0, le=1000.0)] | None = None
    """begin with the first step that takes this many times as long as usual; if ``None``, begin immediately"""


class CaptureAnswer(Struct, frozen=True):
    """A reply of the job to a `CaptureRequest`."""

    refused: str | None = None
    """reason why the job refused the request"""
    armed: bool = False
    """True if the job accepted the request and waits for the next slow step"""
    number: int | None = None
    """number of the capture; the first capture of a job is 1"""
    first_step: int | None = None
    """number of the first step to be profiled, once all ranks have agreed on it"""
    folder: str | None = None
    """folder with the files of the capture, once all ranks have written their files"""


NETBENCH_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Times of collectives with one message size."""

    num_bytes: int
    longest_ns: tuple[int, ...]
    shortest_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConcurrentTimes:
    """Times of two concurrent collectives of the same size."""

    num_bytes: int
    both_ns: tuple[int, ...]
    alone_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BesideTimes:
    """Times of collectives of one size that run while the ranks compute."""

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
