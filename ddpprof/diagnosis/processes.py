"""What does the system tell of a rank's process? It is only looked at, never touched."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddpprof.child_processes import children
from ddpprof.linux_files import OF_MACHINE, number_in, stat_of

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine."""

    pid: int
    name: str
    state: str
    """letter of the system: R running, S sleeping, D waiting for a disk, T stopped, t traced, Z dead"""
    tracer: int | None
    """process of the debugger that is attached"""
    main_thread_cpu_s: float
    num_paged_in: int
    """number of pages that its main thread has had to read from a disk: from swap, or from a file in memory"""
    swapped_bytes: int
    """memory of the process that is in swap"""
    seen_s: float
    """when it was looked at, by the monotonic clock"""
    waits_in: str
    """function of the kernel in which its main thread sleeps; empty if the system does not tell"""
    moved_bytes: int
    """bytes that its main thread has read and written so far, whatever the file; 0 if the system does not tell"""

    @property
    def is_at_a_lock(self) -> bool:
        return self.waits_in.startswith("futex")

    @property
    def is_stopped(self) -> bool:
        return self.state == "T"

    @property
    def is_traced(self) -> bool:
        return self.state == "t" or self.tracer is not None


def look_at(pid: int) -> Process | None:
    """Return the process; ``None`` if there is none, or it is dead."""
    main_thread = stat_of(Path(f"/proc/{pid}/task/{pid}"))
    if main_thread is None or main_thread.is_dead:
        return None
    status = _status(pid)
    return Process(
        pid=pid,
        name=main_thread.name,
        state=main_thread.state,
        tracer=_number(status, "TracerPid") or None,
        main_thread_cpu_s=main_thread.cpu_ticks / _TICKS_PER_S,
        num_paged_in=main_thread.num_paged_in,
        swapped_bytes=1024 * _number(status, "VmSwap"),
        seen_s=time.monotonic(),
        waits_in=_waits_in(pid),
        moved_bytes=_moved_bytes(pid),
    )


def workers_of(pid: int) -> list[Process]:
    """Return the living children of a process, such as the workers of its data loaders."""
    return [found for child in children(pid) if (found := look_at(child)) is not None]


def _waits_in(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{pid}/wchan").read_text(encoding="ascii", errors="replace").strip("0\n")
    except OSError:
        return ""


def _moved_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/task/{pid}/io").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))
    return 0


def _status(pid: int) -> dict[str, str]:
    """Return what the system tells by name; nothing if it does not."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        return {name: value for name, _, value in (line.partition(":") for line in lines)}
    return {}


def _number(status: Mapping[str, str], name: str) -> int:
    """Return a number, whose unit may follow it; 0 if it is not there."""
    with suppress(KeyError, ValueError, IndexError):
        return int(status[name].split()[0])
    return 0


def num_swapped_in() -> int:
    """Return how many pages this machine has read back from swap, for whichever process; 0 if it does not tell."""
    return number_in(OF_MACHINE, "pswpin") or 0
