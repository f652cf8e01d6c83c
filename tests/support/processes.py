"""Processes that end-to-end tests start, look for and wait for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs import environment


def wait_until(holds: Callable[[], bool], what: str, at_most_s: float = 600) -> None:
    until = time.monotonic() + at_most_s
    while not holds():
        assert time.monotonic() < until, f"never {what}"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Return the process's descendants."""
    mine: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            mine.extend(map(int, (task / "children").read_text().split()))
    return [one for child in mine for one in (child, *children(child))]


def readers(pid: int) -> list[int]:
    """Return the processes of the pool."""
    return [one for one in children(pid) if b"spawn_main" in _command_of(one)]


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return b""


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
