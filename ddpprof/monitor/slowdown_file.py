"""``slowdowns.json``: the slow-downs and pauses of a run so far, written by whoever watches it."""

from __future__ import annotations

from pathlib import Path

from msgspec import MsgspecError

from ddpprof import own_files, rundir
from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.model.slowdown import Slowdowns, decode_slowdowns, encode_slowdowns


def write_slowdowns(directory: Path, found: Slowdowns) -> None:
    """Write ``slowdowns.json``. Raises ``OSError``."""
    own_files.write_whole(directory / rundir.SLOWDOWNS_FILE, encode_slowdowns(found))


def read_slowdowns(directory: Location) -> Slowdowns | None:
    """Return the slow-downs that a watcher has written, if any."""
    try:
        return decode_slowdowns(read_small(directory / rundir.SLOWDOWNS_FILE))
    except (OSError, MsgspecError, UnicodeDecodeError, RecursionError):
        return None
