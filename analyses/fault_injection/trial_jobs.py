"""Jobs of the trials: started with a mark in their environment, by which all that they leave is found and removed."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TAG = "FAULT_TAG"
_NUMBERS = itertools.count()
_PATH = re.compile(r"(?<![\w.])(?:/[^\s:,'\"]+)+/")
_OF_THIS_MACHINE = re.compile(r"\d+\.\d+\.\d+\.\d+\S*|(?<=process )\d+|(?<=pid )\d+|(?<=-CONT )\d+|(?<=--pid )\d+")
_SMALL_SHM = 'mount -t tmpfs -o size={}m tmpfs /dev/shm && exec "$@"'


def new_tag() -> str:
    return f"fault-{os.getpid()}-{next(_NUMBERS)}"


def environment(tag: str) -> dict[str, str]:
    """Return the variables of a job, for the start of its ranks."""
    port = str(random.randrange(20000, 32000))  # below those that the system gives to others
    fresh_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # gloo meets no ranks of an earlier attempt
    return {TAG: tag, "OMP_NUM_THREADS": "1", "MASTER_PORT": port, **fresh_store}


def start(
    command: Sequence[object], folder: Path, tag: str, shm_mib: int | None = None, **streams: object
) -> subprocess.Popen[str]:
    """Start a job whose stdin stays open and empty."""
    words = [*map(str, command)]
    if shm_mib is not None:
        words = ["unshare", "--mount", "sh", "-c", _SMALL_SHM.format(shm_mib), "sh", *words]
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        words,
        cwd=folder,
        env={**os.environ, **environment(tag)},
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **streams,
    )


def processes_of(tag: str) -> list[int]:
    mark, found = f"{TAG}={tag}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def end(tag: str) -> None:
    """End all processes of a job, and remove its control groups."""
    groups = [*Path("/sys/fs/cgroup").glob(f"*/{tag}")]
    for group in groups:
        with suppress(OSError):
            (group / "freezer.state").write_text("THAWED", encoding="utf-8")
    for _ in range(50):
        processes = processes_of(tag)
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for group in groups:
            with suppress(OSError):  # it still has a process
                group.rmdir()
        if not processes and not any(group.exists() for group in groups):
            break
        time.sleep(0.2)


def without_names_of_this_machine(text: str) -> str:
    text = _OF_THIS_MACHINE.sub("…", _PATH.sub("", text))
    return text.replace(f"host {socket.gethostname()}", "host …")
