"""A process of the job has ended, as its parent saw it: one line of ``exits.jsonl``."""

from __future__ import annotations

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
