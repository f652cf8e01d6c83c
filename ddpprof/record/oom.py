"""Processes that the kernel ends because memory is full, its own or that of a control group."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_COUNTERS = Path("/proc/vmstat")


def num_oom_kills() -> int | None:
    """Return how many there were on this machine since it began; ``None`` if it does not tell."""
    with suppress(OSError, ValueError, IndexError):
        for line in _COUNTERS.read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def oom_kills_since(before: int | None) -> int | None:
    """Return how many there were since `num_oom_kills` returned `before`."""
    now = num_oom_kills()
    return None if before is None or now is None else now - before
