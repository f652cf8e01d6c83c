"""How much memory is left, in the system and in the control groups of this process?

Slurm, systemd and container runtimes limit memory by nested control groups, of version 2 or 1. File data that a group
could drop counts as used there, but is available.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ddpprof.linux_files import groups_around, number_in

_ROOT = Path("/")


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return the available bytes; ``None`` if the system does not tell. `root`: root of the file system."""
    available_kib = number_in(root / "proc/meminfo", "MemAvailable:")
    found = [] if available_kib is None else [available_kib * 1024]
    for group in groups_around("memory", root):
        for names in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):
                found.append(_left(group, *names))
    return min(found, default=None)


def _left(group: Path, limit: str, usage: str, forgettable: str) -> int:
    """Return the bytes left in a group. Raises ``OSError``, and ``ValueError`` if there is no limit."""
    most, used = (int((group / name).read_text()) for name in (limit, usage))
    return max(0, most - used + (number_in(group / "memory.stat", forgettable) or 0))
