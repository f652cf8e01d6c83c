"""Reads and writes ``hang.json`` and ``slowdowns.json``, in which the watcher of a run keeps what it has found."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ddpprof import own_files, rundir
from ddpprof.files import Location
from ddpprof.model.hang import Verdict
from ddpprof.model.slowdown import Slowdowns


def write_verdict(directory: Path, verdict: Verdict) -> None:
    """Write ``hang.json``. Raises ``OSError``."""
    own_files.write_whole(directory / rundir.HANG_FILE, msgspec.json.encode(verdict))


def read_verdict(directory: Location) -> Verdict | None:
    """Return the last verdict on a job that hung, if any."""
    return rundir.read_json(directory / rundir.HANG_FILE, Verdict)


def write_slowdowns(directory: Path, found: Slowdowns) -> None:
    """Write ``slowdowns.json``. Raises ``OSError``."""
    content = msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    own_files.write_whole(directory / rundir.SLOWDOWNS_FILE, content)


def read_slowdowns(directory: Location) -> Slowdowns | None:
    """Return the slow-downs and pauses so far, if a watcher has written them."""
    return rundir.read_json(directory / rundir.SLOWDOWNS_FILE, Slowdowns)
