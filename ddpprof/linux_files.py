"""Read Linux system files: counters such as those in ``/proc/vmstat``, states of processes, and control groups."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OF_MACHINE = Path("/proc/vmstat")
GROUPS = "sys/fs/cgroup"
"""folder of all control groups, relative to the root of the file system"""
_ROOT = Path("/")


def number_in(path: Path, name: str) -> int | None:
    """Return the number after `name` in the file; ``None`` if the file or the name does not exist."""
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith((f"{name} ", f"{name}\t")):
                return int(line.split()[1])
    return None


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """State of a process or thread, from its ``stat`` file."""

    name: str
    state: str
    """state letter: R running, S sleeping, D waiting for a disk, T stopped, t traced, Z or X dead"""
    parent: int
    num_paged_in: int
    """number of major page faults, which read pages from a disk (from swap, or from a mapped file)"""
    cpu_ticks: int

    @property
    def is_dead(self) -> bool:
        return self.state in "ZX"


def stat_of(folder: Path) -> ProcessStat | None:
    """Read the state of a process or thread from its folder in ``/proc``; ``None`` if the folder does not exist."""
    try:
        before, _, after = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        words = after.split()  # the process name may contain any character, so the last parenthesis ends it
        cpu_ticks = int(words[11]) + int(words[12])
        return ProcessStat(before.partition("(")[2], words[0], int(words[1]), int(words[9]), cpu_ticks)
    except (OSError, ValueError, IndexError):
        return None


def groups_around(controller: str, root: Path = _ROOT) -> Iterator[Path]:
    """Yield the control groups of this process and all their ancestors."""
    for own in own_groups(controller, root):
        yield from (group for group in (own, *own.parents) if group.is_relative_to(root / GROUPS))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the number of cores that control groups allow this process to use; ``None`` if there is no CPU quota."""
    limits = []
    for group in groups_around("cpu", root):
        with suppress(OSError, ValueError):
            quota_us, period_us = _quota_of(group)
            if quota_us > 0 < period_us:
                limits.append(quota_us / period_us)
    return min(limits, default=None)


def _quota_of(group: Path) -> tuple[int, int]:
    """Return the CPU quota and period (µs) of a control group (version 1 or 2). Without a limit, the quota is -1."""
    if (group / "cpu.max").exists():
        quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        return (-1 if quota == "max" else int(quota)), int(period)
    quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
    return int(quota), int(period)


def own_cores() -> tuple[int, ...] | None:
    """Return the cores that this process may use, sorted; ``None`` if the system does not report them."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else None


def threads_per_core(core: int, root: Path = _ROOT) -> int | None:
    """Return how many hardware threads (Linux counts them as cores) share a physical core; ``None`` if unknown."""
    with suppress(OSError, ValueError):
        siblings = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        ranges = [part.split("-") for part in siblings.read_text(encoding="utf-8").split(",")]  # such as 0,32 or 0-1
        return sum(int(one[-1]) - int(one[0]) + 1 for one in ranges)
    return None


@dataclass(frozen=True, slots=True)
class CoreTicks:
    """Busy time and total time of a set of cores since the start of the system, in clock ticks."""

    busy: int
    total: int


def ticks_of(cores: Container[int], root: Path = _ROOT) -> CoreTicks | None:
    """Return the busy and total time of `cores` together, from ``/proc/stat``; ``None`` if it does not contain them."""
    busy = total = 0
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/stat").read_text(encoding="utf-8").splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu" and int(name.removeprefix("cpu")) in cores:
                user, nice, system, idle, waits_for_disk, *interrupts = map(int, fields[:8])
                busy += user + nice + system + sum(interrupts)
                total += user + nice + system + idle + waits_for_disk + sum(interrupts)
    return CoreTicks(busy, total) if total else None


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return the memory in bytes that this process can still allocate; ``None`` if the system does not report it.

    Slurm, systemd and container runtimes limit memory with nested control groups (version 1 or 2). Control groups count
    reclaimable file cache as used, but this function counts it as available.
    """
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
    """Return the bytes available in a group. Raises ``OSError``, and ``ValueError`` if the group has no limit.

    `limit`, `usage`: names of the group's files. `forgettable`: name of the file cache's counter in ``memory.stat``.
    """
    most, used = (int((group / name).read_text()) for name in (limit, usage))
    return max(0, most - used + (number_in(group / "memory.stat", forgettable) or 0))


def is_frozen(pid: int, root: Path = _ROOT) -> bool:
    """Return True if the control group of a process is frozen, for example by ``docker pause`` or a scheduler."""
    for group in own_groups("freezer", root, str(pid)):
        with suppress(OSError):
            if (group / "freezer.state").read_text(encoding="utf-8").strip() in ("FROZEN", "FREEZING"):
                return True
        if number_in(group / "cgroup.events", "frozen"):
            return True
    return False


def own_groups(controller: str, root: Path = _ROOT, pid: str = "self") -> Iterator[Path]:
    """Yield the control groups in which `controller` may limit this process, or process `pid`.

    In version 2, all controllers share one tree of groups. In version 1, each controller has its own tree.
    """
    with suppress(OSError, ValueError):
        for line in (root / "proc" / pid / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield root / GROUPS / group.lstrip("/")
            elif controller in controllers.split(","):
                for tree in dict.fromkeys((controllers, controller)):  # mounted by all names, or linked by one name
                    yield root / GROUPS / tree / group.lstrip("/")
