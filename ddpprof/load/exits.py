"""How the processes of a run ended, as seen by the process that started them: ``exits.jsonl``."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.model import ProcessExit
from ddpprof.rundir import EXITS_FILE, attempt_of

_decode = msgspec.json.Decoder(ProcessExit).decode


def load_exits(directory: Location) -> tuple[ProcessExit, ...]:
    """Return every line that can be read. All attempts of a job share one file, in the job's directory."""
    if attempt_of(directory.name):
        directory = directory.parent
    found: list[ProcessExit] = []
    with suppress(OSError):
        for line in read_small(directory / EXITS_FILE).splitlines():
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                found.append(_decode(line))
    return tuple(found)
