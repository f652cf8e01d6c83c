"""Processes that end-to-end tests start, look for and wait for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs import environment


def wait_until(holds: Callable[[], bool], what: str, at_most_s: float = 60) -> None:
    until = time.monotonic() + at_most_s
    while not holds():
        assert time.monotonic() < until, f"never {what}"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Return the process's descendants."""
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):  # one has just ended
        return []
    mine = [int(child) for task in tasks for child in task.split()]
    return [one for child in mine for one in (child, *children(child))]


def readers(pid: int) -> list[int]:
    """Return the processes of the pool."""
    try:
        return [one for one in children(pid) if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
    except (FileNotFoundError, ProcessLookupError):  # one has just ended
        return []


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def started(*command: str | Path, cwd: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*map(str, command)], cwd=cwd, env=environment(**env), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()
