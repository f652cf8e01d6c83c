"""``hang.json``: the last verdict on a job that hung."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ddpprof import own_files, rundir
from ddpprof.files.small import read_small
from ddpprof.model.hang import Verdict


def write_verdict(directory: Path, verdict: Verdict) -> None:
    """Write ``hang.json``. Raises ``OSError``."""
    own_files.write_whole(directory / rundir.HANG_FILE, msgspec.json.encode(verdict))


def read_verdict(directory: Path) -> Verdict | None:
    """Return the verdict that a watcher has written, if any."""
    try:
        return msgspec.json.decode(read_small(directory / rundir.HANG_FILE), type=Verdict)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
