"""The end of a process of the job, as its parent saw it: one line of ``exits.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ddpprof.model.int64 import Count, Int64


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
