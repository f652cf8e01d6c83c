"""What does the system tell of a rank's process? It is only looked at, never touched."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ddpprof.child_processes import children, descendants
from ddpprof.linux_files import OF_MACHINE, is_frozen, number_in, stat_of
from ddpprof.model.overdue import Wait
from ddpprof.monitor.kernel_waits import wait_of

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine. Its main thread is here the one that trains, if that is another one."""

    pid: int
    name: str
    state: str
    """letter of the system: R running, S sleeping, D waiting for a disk, T stopped, t traced, Z dead"""
    tracer: int | None
    """process of the debugger that is attached"""
    main_thread_cpu_s: float
    threads_cpu_s: float
    """time that its other threads have computed"""
    children_cpu_s: float
    """time that its living descendants have computed"""
    num_paged_in: int
    """number of pages that its main thread has had to read from a disk: from swap, or from a file in memory"""
    swapped_bytes: int
    """memory of the process that is in swap"""
    seen_s: float
    """when it was looked at, by the monotonic clock"""
    wait: Wait | None
    """for what its main thread sleeps; ``None`` if it does not, or the system does not tell"""
    moved_bytes: int
    """bytes that its main thread has read and written so far, whatever the file; 0 if the system does not tell"""
    started_ns: int | None = None
    """when it was started, ns since 1970, to a tick of the system; ``None`` if the system does not tell"""
    is_frozen: bool = False
    """whether its control group is frozen"""
    do_children_run: bool = False
    """whether one of its living descendants computes now, or is ready to"""

    @property
    def is_stopped(self) -> bool:
        return self.state == "T" or self.is_frozen

    @property
    def is_traced(self) -> bool:
        return self.state == "t" or self.tracer is not None


def look_at(pid: int, thread: int | None = None) -> Process | None:
    """Return the process; ``None`` if there is none, or it is dead.

    `thread`: the system's number of the thread to look at instead of the main one.
    """
    main_thread, whole = stat_of(Path(f"/proc/{pid}/task/{pid}")), stat_of(Path(f"/proc/{pid}"))
    if main_thread is None or whole is None or main_thread.is_dead:
        return None
    if thread is not None:
        main_thread = stat_of(Path(f"/proc/{pid}/task/{thread}")) or main_thread
    of_children = [found for child in descendants(pid) if (found := stat_of(Path(f"/proc/{child}"))) is not None]
    status = Path(f"/proc/{pid}/status")
    return Process(
        pid=pid,
        name=main_thread.name,
        state=main_thread.state,
        tracer=number_in(status, "TracerPid:") or None,
        main_thread_cpu_s=main_thread.cpu_ticks / _TICKS_PER_S,
        threads_cpu_s=max(whole.cpu_ticks - main_thread.cpu_ticks, 0) / _TICKS_PER_S,
        children_cpu_s=sum(one.cpu_ticks for one in of_children) / _TICKS_PER_S,
        num_paged_in=main_thread.num_paged_in,
        swapped_bytes=1024 * (number_in(status, "VmSwap:") or 0),
        seen_s=time.monotonic(),
        wait=wait_of(Path(f"/proc/{pid}/task/{thread or pid}")),
        moved_bytes=_moved_bytes(pid, thread or pid),
        started_ns=_started_ns(pid),
        is_frozen=is_frozen(pid),
        do_children_run=any(one.state == "R" for one in of_children),
    )


def workers_of(pid: int) -> list[Process]:
    """Return the living children of a process, such as the workers of its data loaders."""
    return [found for child in children(pid) if (found := look_at(child)) is not None]


def _started_ns(pid: int) -> int | None:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        since_boot_ns = int(words[19]) * 1_000_000_000 // _TICKS_PER_S
        return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _moved_bytes(pid: int, thread: int) -> int:
    path = Path(f"/proc/{pid}/task/{thread}/io")
    return sum(number_in(path, name) or 0 for name in ("rchar:", "wchar:"))


def num_swapped_in() -> int:
    """Return how many pages this machine has read back from swap, for whichever process; 0 if it does not tell."""
    return number_in(OF_MACHINE, "pswpin") or 0
