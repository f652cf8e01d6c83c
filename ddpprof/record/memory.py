"""How much memory does this process hold? The operating system and torch's allocator tell.

Nothing here creates a CUDA context, resets a peak or waits for a device.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ddpprof.model import DeviceMemory, Memory
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
            return tuple(DeviceMemory(device, *_allocated(self._torch, device)) for device in sorted(self._own))
        except _NOT_TOLD:
            return ()

    def devices(self) -> tuple[DeviceMemory, ...]:
        """Describe every device on which the process holds memory or a context."""
        if not self._torch.is_initialized():
            return ()
        try:
            number = self._torch.device_count()
            held = [one for one in range(number) if one in self._own or _holds(self._torch, one)]
            return tuple(_describe(self._torch, one, one in self._own) for one in held)
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


def _allocated(module: Any, device: int) -> tuple[int, int, int]:
    """Return bytes in tensors, their peak, and bytes reserved by the allocator."""
    stats = module.memory_stats_as_nested_dict(device)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return allocated["current"], allocated["peak"], reserved["current"]


def _holds(module: Any, device: int) -> bool:
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None) if module is torch.cuda else None
    if has_context is not None:
        return bool(has_context(device))
    return _allocated(module, device)[2] > 0


def _describe(module: Any, device: int, is_own: bool) -> DeviceMemory:
    properties = module.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    uuid = None if uuid is None else str(uuid)
    return DeviceMemory(device, *_allocated(module, device), is_own, uuid, properties.total_memory)
