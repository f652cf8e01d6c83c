"""What does the machine give to this process, and what does it withhold? Sums count from the process's begin on."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path

from ddpprof.model import UNKNOWN

_PROC = Path("/proc/self")
_CGROUPS = Path("/sys/fs/cgroup")
_MOST_THREADS = 256
_MOST_CORES = 64


def queued_ns() -> int:
    """Return for how long threads of this process were ready and had no processor, in sum."""
    queued, found = 0, False
    with suppress(OSError):
        for thread in os.listdir(_PROC / "task")[:_MOST_THREADS]:
            with suppress(OSError, ValueError, IndexError):  # it has just ended, or the kernel does not tell
                queued += int((_PROC / "task" / thread / "schedstat").read_text(encoding="ascii").split()[1])
                found = True
    return queued if found else UNKNOWN


def throttled_ns() -> int:
    """Return for how long the limit of the control group has kept its processes from running."""
    path, unit_ns = _throttling()
    if path is not None:
        with suppress(OSError, ValueError, IndexError):
            for line in path.read_text(encoding="ascii").splitlines():
                if line.startswith("throttled_"):
                    return int(line.split()[1]) * unit_ns
    return UNKNOWN


@functools.cache
def _throttling() -> tuple[Path | None, int]:
    """Return the file that tells, and the unit of its number in ns: control groups have two versions."""
    with suppress(OSError, ValueError):
        for line in (_PROC / "cgroup").read_text(encoding="ascii").splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers == "":
                path, unit_ns = _CGROUPS / group.lstrip("/") / "cpu.stat", 1000  # throttled_usec
            elif "cpu" in controllers.split(","):
                path, unit_ns = _CGROUPS / controllers / group.lstrip("/") / "cpu.stat", 1  # throttled_time
            else:
                continue
            if path.exists() and "throttled_" in path.read_text(encoding="ascii"):
                return path, unit_ns
    return None, 1


def major_faults() -> int:
    """Return the number of page faults that had to read a disk."""
    try:
        after_name = (_PROC / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        return int(after_name.split()[9])
    except (OSError, ValueError, IndexError):
        return UNKNOWN


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
