"""How much memory is left: of the system, and of what the control groups of this process may use.

Slurm, systemd and container runtimes limit memory by control groups, of version 2 or 1, one within the other. What a
group has read from files and could forget counts as used there, and is left all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def available_bytes(root: Path = _ROOT) -> int | None:
    """``None`` where the system does not say. `root`: of the file system."""
    found = []
    with suppress(OSError, ValueError, IndexError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    for group in _groups(root):
        for names in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):
                found.append(_left(group, *names))
    return min(found, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Of this process, and all that they are in."""
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = mounts / "memory" if controllers else mounts
        inner = mount / path.lstrip("/")
        yield from (group for group in (inner, *inner.parents) if group == mount or mount in group.parents)


def _left(group: Path, limit: str, usage: str, forgettable: str) -> int:
    """Raises ``OSError``, and ``ValueError`` where there is no limit."""
    most, used = (int((group / name).read_text()) for name in (limit, usage))
    with suppress(OSError, ValueError):
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used -= int(stat.get(forgettable, 0))
    return max(0, most - used)
