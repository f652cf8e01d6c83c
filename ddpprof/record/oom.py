"""Processes that the kernel kills because the memory of the machine, or of a control group, is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddpprof.linux_counters import OF_MACHINE, number_in

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


class OomKills:
    """Counts the kills in this process's control group, or else on the whole machine."""

    def __init__(self) -> None:
        self._before = _num_kills()

    def since_last_time(self) -> int | None:
        """Return how many there were since the last call, or since the begin; ``None`` if that is not known."""
        before, self._before = self._before, _num_kills()
        return None if before is None or self._before is None else max(0, self._before - before)


def _num_kills() -> int | None:
    counts = (number_in(path, "oom_kill") for path in (*_own_events(), OF_MACHINE))
    return next((count for count in counts if count is not None), None)


def _own_events() -> Iterator[Path]:
    """Yield the file that counts the kills in this control group and those within it; only version 2 has one."""
    with suppress(OSError, ValueError):
        for line in _OWN_GROUP.read_text(encoding="utf-8").splitlines():
            number, _, group = line.split(":", 2)
            if number == "0":
                yield _GROUPS / group.lstrip("/") / "memory.events"
