"""How much memory a command takes, with all processes that it starts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

EVERY_S = 0.005


def peak_bytes(command: Sequence[str | Path]) -> int:
    """Return the most memory that its processes held at one moment; shared memory counts once (Linux: PSS)."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(_held_bytes, _tree(process.pid))))
            time.sleep(EVERY_S)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak


def _tree(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            children += map(int, task.read_text().split())
    return [pid, *(one for child in children for one in _tree(child))]


def _held_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
