"""Linux reports counters by name, one a line, as in ``/proc/vmstat``; this reads one of them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

OF_MACHINE = Path("/proc/vmstat")


def number_in(path: Path, name: str) -> int | None:
    """Return the number called `name`; ``None`` if the file, or a number of that name, is not there."""
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return None
