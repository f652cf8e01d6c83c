"""``run.json``: the command, the ddpprof version and the settings. Rank 0 writes it, and one rank of each part."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

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
