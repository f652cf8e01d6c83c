"""What does the machine give to this process, and what does it withhold? Totals count from the process's beginning."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path

from ddpprof.linux_files import number_in, own_groups, stat_of
from ddpprof.model import UNKNOWN

_PROC = Path("/proc/self")
_THROTTLED_UNITS_NS = {"throttled_usec": 1000, "throttled_time": 1}
"""units of the numbers in control groups of version 2 and 1, by their names"""
_MOST_THREADS = 256
_MOST_CORES = 64


def queued_ns() -> int:
    """Return the total time for which threads of this process were ready and had no processor."""
    queued, found = 0, False
    with suppress(OSError):
        for thread in os.listdir(_PROC / "task")[:_MOST_THREADS]:
            with suppress(OSError, ValueError, IndexError):  # it has just ended, or the kernel does not tell
                queued += int((_PROC / "task" / thread / "schedstat").read_text(encoding="ascii").split()[1])
                found = True
    return queued if found else UNKNOWN


class Throttling:
    """For how long limits of control groups have kept this process from running, whichever groups it was put into."""

    def __init__(self) -> None:
        self._groups: str | None = None
        self._of_earlier_groups = self._total = 0

    def total_ns(self) -> int:
        groups = _own_groups()
        where = _throttling(groups)
        throttled = None if where is None else number_in(*where)
        if where is None or throttled is None:
            return UNKNOWN
        throttled *= _THROTTLED_UNITS_NS[where[1]]
        if self._groups not in (None, groups):
            self._of_earlier_groups = self._total - throttled
        self._groups, self._total = groups, self._of_earlier_groups + throttled
        return self._total


_THROTTLED = Throttling()


def throttled_ns() -> int:
    """Return for how long the limit of the control group has kept its processes from running."""
    return _THROTTLED.total_ns()


def _own_groups() -> str:
    """Return the control groups of this process, which somebody may change."""
    with suppress(OSError):
        return (_PROC / "cgroup").read_text(encoding="utf-8")
    return ""


@functools.lru_cache(maxsize=8)
def _throttling(_groups: str) -> tuple[Path, str] | None:
    """Return the file that tells, and the name of its number; ``None`` if there is none."""
    for group in own_groups("cpu"):
        for name in _THROTTLED_UNITS_NS:
            if number_in(group / "cpu.stat", name) is not None:
                return group / "cpu.stat", name
    return None


def major_faults() -> int:
    """Return the number of page faults that had to read a disk."""
    found = stat_of(_PROC)
    return UNKNOWN if found is None else found.num_paged_in


def core_khz() -> int:
    """Return the mean clock rate of the cores that this process may use."""
    try:
        cores = sorted(os.sched_getaffinity(0))[:_MOST_CORES]
        rates = [
            int(Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").read_text(encoding="ascii"))
            for core in cores
        ]
        return sum(rates) // len(rates)
    except (OSError, ValueError, AttributeError, ZeroDivisionError):
        return UNKNOWN
