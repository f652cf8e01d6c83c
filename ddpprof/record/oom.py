"""Processes that the kernel kills because the memory of the machine, or of a control group, is full."""

from __future__ import annotations

from ddpprof.linux_files import OF_MACHINE, number_in, own_groups


class OomKills:
    """Counts the kills in this process's control group, or else on the whole machine."""

    def __init__(self) -> None:
        self._before = _num_kills()

    def since_last_time(self) -> int | None:
        """Return how many there were since the last call, or since the begin; ``None`` if that is not known."""
        before, self._before = self._before, _num_kills()
        return None if before is None or self._before is None else max(0, self._before - before)


def _num_kills() -> int | None:
    of_groups = [group / "memory.events" for group in own_groups("memory")]  # only groups of version 2 have this file
    counts = (number_in(path, "oom_kill") for path in (*of_groups, OF_MACHINE))
    return next((count for count in counts if count is not None), None)
