"""A part of the run: the files of one host's own ranks, if hosts share no file system.

Rank 0 writes ``run.json`` into the run directory before any rank asks for it, and the ranks know its ``run_id`` from
the job's store. A rank that does not see that file writes one for its host, and says how to join the parts.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from ddpprof import rundir
from ddpprof.errors import RunExists
from ddpprof.model.run_file import RunFile
from ddpprof.own_files import make_folder
from ddpprof.record.output import about_run, write_run_file
from ddpprof.record.settings import Settings

_PATIENCE_S = 1.0
"""seconds that a network file system may take to show what another host has written"""


def keep_part(directory: Path, settings: Settings, run_id: str, world_size: int, warn: Callable[[str], None]) -> bool:
    """Make `directory` a part of the run, unless it is the one that rank 0 created; return whether it has become one.

    Raises ``OSError``, and ``RunExists`` if this host keeps an earlier run there.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while (there := _run_in(directory)) != run_id:
        if there is not None and time.monotonic() > deadline:
            raise RunExists(f"{directory} holds an earlier run on this host. Remove it, or choose another --out.")
        if time.monotonic() > deadline:
            make_folder(directory)  # asks the server, in case this host only remembers that nothing was there
            if _run_in(directory) is None:
                _begin_part(directory, about_run(settings, run_id, world_size), settings, warn)
                return True
        time.sleep(0.05)
    return False


def _run_in(directory: Path) -> str | None:
    """Return the ``run_id`` of the run there; listing the folder makes a network file system look again."""
    with suppress(OSError, ValueError, AttributeError):
        if rundir.RUN_FILE in os.listdir(directory):
            return str(json.loads((directory / rundir.RUN_FILE).read_bytes()).get("run_id"))
    return None


def _begin_part(directory: Path, about: RunFile, settings: Settings, warn: Callable[[str], None]) -> None:
    write_run_file(directory, structs.replace(about, settings={"profiler": settings.profiler}, is_part=True))
    host = socket.gethostname()
    copied = f"{directory}-{host}"
    warn(
        f"{host} does not see the folder of rank 0, so the files of its ranks stay here. On rank 0's host: "
        f"rsync -a {host}:{directory}/ {copied}/ && ddpprof report {directory} {copied}"
    )
