"""torchrun's options and environment variables, and functions that record how its ranks end.

This module does not import torch.

A test compares the table of options with the parser of the installed torch.

ddpprof is also injected into torchrun's process. There, torchrun creates a ``ProcessFailure`` with the exit code or the
signal of each rank that ended by itself, before it ends the remaining ranks with SIGTERM.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ddpprof import own_files, rundir
from ddpprof.linux_files import OF_MACHINE, number_in, own_groups
from ddpprof.record.inject._ddpprof_ends import place
from ddpprof.record.settings import settings_from_environment

_OPTIONS = (
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone", "max-restarts",
    "monitor-interval", "start-method", "event-log-handler", "role", "no-python", "run-path", "log-dir", "redirects",
    "tee", "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank", "master-addr",
    "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout",
    "virtual-local-rank", "log-line-prefix-template", "print-completion",
)  # fmt: skip
_FLAGS = {"standalone", "no-python", "run-path", "virtual-local-rank"}
_SHORT = {"redirects": "-r", "tee": "-t"}
OPTIONS: tuple[tuple[tuple[str, ...], bool], ...] = tuple(
    (tuple(dict.fromkeys((_SHORT.get(it, f"--{it}"), f"--{it}", f"--{it.replace('-', '_')}"))), it not in _FLAGS)
    for it in _OPTIONS
)
"""for each option, all its names, and whether it takes a value; `ddpprof trace` defines ``-m/--module`` itself"""


_ONE_RANK = "DDPPROF_ONE_RANK"
_MASTER_PORT = "MASTER_PORT"
_ONLY_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def launcher_variables() -> dict[str, str]:
    """Return the environment variables that torchrun would set for a single rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {_ONE_RANK: "1", _MASTER_PORT: str(port), **_ONLY_RANK}


def give_back_rank(environments: ModuleType) -> None:
    """Remove the `launcher_variables` when Lightning checks how ranks are started, so that ranks do not inherit them.

    `environments`: ``plugins.environments.lightning`` of Lightning Fabric.
    """
    if _ONE_RANK not in os.environ:
        return
    original = environments.LightningEnvironment.__init__

    @functools.wraps(original)
    def begins(self: Any) -> None:
        if os.environ.pop(_ONE_RANK, None) is not None:
            for name in (_MASTER_PORT, *_ONLY_RANK):
                os.environ.pop(name, None)
        original(self)

    environments.LightningEnvironment.__init__ = begins


AGENT = "DDPPROF_AGENT"
"""environment variable with the PID of the torchrun process; a rank ends when this process ends
(``inject/_ddpprof_ends.py``)
"""
_OF_RANKS = "TORCHELASTIC_RUN_ID"
"""environment variable that torchrun sets only in ranks"""


class OomKills:
    """Counts the processes that the kernel kills because a cgroup or the machine is out of memory."""

    def __init__(self) -> None:
        self._before = _num_kills()

    def since_last_time(self) -> int | None:
        """Return the number of kills since the last call or, at first, since construction; ``None`` if unknown."""
        before, self._before = self._before, _num_kills()
        return None if before is None or self._before is None else max(0, self._before - before)


def _num_kills() -> int | None:
    of_groups = [group / "memory.events" for group in own_groups("memory")]  # this file only exists in cgroup v2
    counts = (number_in(path, "oom_kill") for path in (*of_groups, OF_MACHINE))
    return next((count for count in counts if count is not None), None)


def listen_to_torchrun(errors: ModuleType) -> None:
    """Record how ranks end, if this is torchrun's process.

    `errors`: the module ``torch.distributed.elastic.multiprocessing.errors``.
    """
    settings = settings_from_environment()
    failure = getattr(errors, "ProcessFailure", None)
    if settings is None or failure is None:
        return
    if _OF_RANKS not in os.environ:  # a rank also imports this module if its script uses torchrun's `record`
        with suppress(OSError):
            os.environ[AGENT] = f"{os.getpid()} {place()}"
    original, out, oom_kills = failure.__post_init__, Path(settings.out), OomKills()

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        original(self)
        with suppress(Exception):  # torchrun must continue even if ddpprof fails
            how = {"exit_code": int(self.exitcode), "num_oom_kills": oom_kills.since_last_time()}
            append_exit(out, {"pid": int(self.pid), **how})

    failure.__post_init__ = post_init


def note_child(pid: int, exit_code: int) -> None:
    """Record how a child process of the job ended. The child may be a rank. Raises ``OSError``."""
    settings = settings_from_environment()
    if settings is not None and AGENT not in os.environ:  # in torchrun's process, see `listen_to_torchrun`
        append_exit(Path(settings.out), {"pid": pid, "exit_code": exit_code})


def note_early_end(error: BaseException | None) -> None:
    """Record the error that ends this process, if it is a rank without a DDP module. The run may not exist yet.

    Raises ``OSError``.
    """
    from ddpprof.model.record import error_in
    from ddpprof.record.job import how_it_ends, where_it_ends

    settings, rank, said = settings_from_environment(), os.environ.get("RANK", ""), how_it_ends(error)
    if settings is None or not rank.isdecimal() or error_in(said) is None:
        return
    out = Path(settings.out)
    own_files.make_named_folder(out)
    place = where_it_ends(error).get("ended_place")
    _write_exit(out, {"rank": int(rank), "pid": os.getpid(), "exit_code": 1, "error": said, "place": place})


def append_exit(out: Path, seen: dict[str, Any]) -> None:
    """Append a line to ``exits.jsonl`` if the run or this file exists. Raises ``OSError``.

    The file exists without a run if a rank failed before the run was created.
    """
    if rundir.is_run(out) or (out / rundir.EXITS_FILE).exists():
        _write_exit(out, seen)


def _write_exit(out: Path, seen: dict[str, Any]) -> None:
    line = json.dumps({"host": socket.gethostname(), "unix_ns": time.time_ns(), **seen})
    with os.fdopen(own_files.append_to(out / rundir.EXITS_FILE), "wb") as file:
        file.write(f"{line}\n".encode())
