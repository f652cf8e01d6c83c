"""A process of the job has ended, as its parent saw it: one line of ``exits.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ddpprof.model.record import Int64


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
    num_oom_kills: Int64 | None = None
    """number of processes that the kernel had ended on the parent's machine, for lack of memory, since the job began"""


def oom_kills_on(host: str, exits: Sequence[ProcessExit]) -> int | None:
    """Return how many processes the kernel has ended on a host for lack of memory; ``None`` if that is not known."""
    known = (one.num_oom_kills for one in exits if one.host == host and one.num_oom_kills is not None)
    return max(known, default=None)
