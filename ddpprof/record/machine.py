"""What do the machine and torch's allocator give to this process, and what do they withhold?

Totals count from the process's beginning. Nothing here creates a CUDA context, resets a peak or waits for a device.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ddpprof.linux_files import number_in, own_groups, stat_of
from ddpprof.model import UNKNOWN, DeviceMemory, Memory
from ddpprof.model.backends import WITH_MEMORY

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NOT_TOLD = (RuntimeError, KeyError)
"""errors of a failing device, or of an allocator without statistics; the rest of the record is still useful"""
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryNotes:
    def __init__(self) -> None:
        self._own: set[int] = set()
        self._torch: Any = torch.cuda
        """torch's module for the accelerator"""

    def owns(self, devices: Iterable[torch.device]) -> None:
        """Note devices on which the process trains."""
        for device in devices:
            if device.type in WITH_MEMORY and device.index is not None:
                self._own.add(device.index)
                self._torch = getattr(torch, device.type)

    def sample(self) -> Memory:
        """Return the memory of the process and of its own devices, now and at its peak."""
        rss, peak = resident_bytes(), peak_resident_bytes()
        if rss is not None:
            peak = max(rss, peak)  # the system updates its peak only now and then
        return Memory(rss, peak, self._own_devices())

    def _own_devices(self) -> tuple[DeviceMemory, ...]:
        try:
            return tuple(DeviceMemory(device, *_allocated_bytes(self._torch, device)) for device in sorted(self._own))
        except _NOT_TOLD:
            return ()

    def devices(self) -> tuple[DeviceMemory, ...]:
        """Describe every device on which the process holds memory or a context."""
        if not self._torch.is_initialized():
            return ()
        try:
            number = self._torch.device_count()
            held = [one for one in range(number) if one in self._own or _holds_memory(self._torch, one)]
            return tuple(_describe_device(self._torch, one, one in self._own) for one in held)
        except _NOT_TOLD:
            return ()


def resident_bytes() -> int | None:
    """Return the process's resident memory in bytes; ``None`` if the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def peak_resident_bytes() -> int:
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * _MAXRSS_UNIT


def _allocated_bytes(module: Any, device: int) -> tuple[int, int, int]:
    """Return bytes in tensors, their peak, and bytes reserved by the allocator."""
    stats = module.memory_stats_as_nested_dict(device)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return allocated["current"], allocated["peak"], reserved["current"]


def _holds_memory(module: Any, device: int) -> bool:
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None) if module is torch.cuda else None
    if has_context is not None:
        return bool(has_context(device))
    return _allocated_bytes(module, device)[2] > 0


def _describe_device(module: Any, device: int, is_own: bool) -> DeviceMemory:
    properties = module.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    uuid = None if uuid is None else str(uuid)
    return DeviceMemory(device, *_allocated_bytes(module, device), is_own, uuid, properties.total_memory)


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
