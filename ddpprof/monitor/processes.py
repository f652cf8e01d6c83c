"""Read from ``/proc`` what a rank's process is doing and what its training thread waits for.

The system call of a thread shows what it waits for. If the system call is hidden, the kernel function in which the
thread sleeps is used instead.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddpprof.child_processes import children, descendants
from ddpprof.linux_files import OF_MACHINE, is_frozen, number_in, stat_of
from ddpprof.model.hang import LONG_START_S, StartingJob
from ddpprof.model.overdue import Wait
from ddpprof.words import listed, ranks_in_words

_CALLS_ON_FILES = {"x86_64": {0, 1, 17, 18, 19, 20}, "aarch64": {63, 64, 65, 66, 67, 68}}
"""for each machine type: numbers of the system calls read and write, and of their variants"""
_OTHER_CALLS = {
    "x86_64": {
        Wait.NETWORK: {42, 43, 44, 45, 46, 47, 288},
        Wait.FILE: {2, 74, 75, 257},
        Wait.LOCK: {72, 73, 202},
        Wait.PROCESS: {61, 247},
        Wait.SLEEP: {35, 230, 34},
        Wait.EVENTS: {7, 23, 232, 270, 271, 281},
    },
    "aarch64": {
        Wait.NETWORK: {202, 203, 206, 207, 211, 212, 242},
        Wait.FILE: {56, 82, 83},
        Wait.LOCK: {25, 32, 98},
        Wait.PROCESS: {95, 260},
        Wait.SLEEP: {101, 115},
        Wait.EVENTS: {22, 72, 73},
    },
}
_PLACES = {
    Wait.INPUT: re.compile("n_tty_read"),
    Wait.NETWORK: re.compile("sk_|skb_|tcp_|unix_stream|inet_|sock_|unix_accept"),
    Wait.PIPE: re.compile("pipe_|wait_for_partner"),
    Wait.FILE: re.compile("nfs|fuse|io_schedule|folio_wait|jbd2|ext4|xfs"),
    Wait.LOCK: re.compile("futex|flock|locks_lock|fcntl_setlk"),
    Wait.PROCESS: re.compile("do_wait$|kernel_wait"),
    Wait.SLEEP: re.compile("nanosleep|pause"),
    Wait.EVENTS: re.compile("poll|do_select|ep_"),
}
"""reason for waiting → pattern for the kernel functions in which a thread sleeps for this reason"""


def wait_of(thread: Path) -> Wait | None:
    """Return what a thread waits for; ``None`` if it does not sleep, or if the system does not report it.

    `thread`: its folder in ``/proc``.
    """
    slept_in = _text(thread / "wchan").strip("0\n")
    words = _text(thread / "syscall").split()
    if len(words) < 3:
        return _by_place(slept_in)
    with suppress(ValueError):
        return _by_call(thread, int(words[0]), int(words[1], 16), slept_in)
    return None


def _by_call(thread: Path, number: int, argument: int, slept_in: str) -> Wait | None:
    machine = os.uname().machine
    if number in _CALLS_ON_FILES.get(machine, ()):
        return _by_file(thread, argument)
    found = next((wait for wait, numbers in _OTHER_CALLS.get(machine, {}).items() if number in numbers), None)
    return Wait.PIPE if "wait_for_partner" in slept_in else found or _by_place(slept_in)


def _by_file(thread: Path, number: int) -> Wait:
    """Return the kind of file that a thread waits for. Any terminal counts as standard input."""
    with suppress(OSError):
        target = str((thread / "fd" / str(number)).readlink())
        if number == 0 or target.startswith(("/dev/pts/", "/dev/tty")):
            return Wait.INPUT
        if target.startswith("socket:"):
            return Wait.NETWORK
        if target.startswith("pipe:") or (thread / "fd" / str(number)).is_fifo():
            return Wait.PIPE
    return Wait.FILE


def _by_place(slept_in: str) -> Wait | None:
    return next((wait for wait, pattern in _PLACES.items() if pattern.search(slept_in)), None)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace")
    return ""


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A process on this machine. "Main thread" means the training thread, whichever thread of the process that is."""

    pid: int
    name: str
    state: str
    """process state letter: R running, S sleeping, D waiting for a disk, T stopped, t traced, Z dead"""
    tracer: int | None
    """PID of the debugger that is attached to the process; ``None`` if there is none"""
    main_thread_cpu_s: float
    threads_cpu_s: float
    """CPU time of all threads except the main thread, in seconds"""
    children_cpu_s: float
    """CPU time of the process's living descendants, in seconds"""
    num_paged_in: int
    """number of the main thread's major page faults, which read pages from swap or from a mapped file"""
    swapped_bytes: int
    """size of the process's memory that is in swap, in bytes"""
    seen_s: float
    """time at which the values were read, on the monotonic clock, in seconds"""
    wait: Wait | None
    """what the main thread waits for; ``None`` if it does not sleep, or if the system does not report it"""
    moved_bytes: int
    """number of bytes that the main thread has read from and written to files so far; 0 if the system does not report
    it
    """
    started_ns: int | None = None
    """start time of the process in ns since 1970, with the resolution of the system's tick; ``None`` if the system does
    not report it
    """
    is_frozen: bool = False
    """whether the process's control group is frozen"""
    do_children_run: bool = False
    """whether any living descendant of the process is running or runnable"""
    do_threads_run: bool = False
    """whether any thread except the main thread is running or runnable"""

    @property
    def is_stopped(self) -> bool:
        return self.state == "T" or self.is_frozen

    @property
    def is_traced(self) -> bool:
        return self.state == "t" or self.tracer is not None


def look_at(pid: int, thread: int | None = None) -> Process | None:
    """Return the process; ``None`` if it is dead or does not exist.

    `thread`: native ID of the thread to use instead of the main thread.
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
        do_threads_run=_does_another_run(pid, thread or pid),
    )


def workers_of(pid: int) -> list[Process]:
    """Return the living children of a process, such as data loader workers."""
    return [found for child in children(pid) if (found := look_at(child)) is not None]


def starting_job(launcher: int) -> StartingJob:
    """Describe the processes that `launcher` has started on this host, and of which none has begun to train."""
    ranks, sizes = dict[int, int](), set[int]()
    for pid in sorted(descendants(launcher)):
        given = _numbers_in_environment(pid)
        if "RANK" in given:
            ranks.setdefault(given["RANK"], pid)
            sizes |= {given["WORLD_SIZE"]} if "WORLD_SIZE" in given else set()
    started_ns = _started_ns(launcher)
    seconds = 0.0 if started_ns is None else (time.time_ns() - started_ns) / 1e9
    return StartingJob(seconds, dict(sorted(ranks.items())), max(sizes, default=None))


def start_line(job: StartingJob) -> str:
    """Return a line about a job of which no rank has begun to train: which ranks have started, and which have not."""
    if job.seconds < LONG_START_S:
        return "no rank is training yet. Try again in a few seconds."
    said = f"no rank has begun to train within {job.seconds:.0f} s. "
    if job.ranks:
        named = [f"rank {rank} (process {pid})" for rank, pid in job.ranks.items()]
        said += f"Started on this host: {listed(named, _MOST_STARTED)}. "
    left = missing_ranks(job.world_size, job.ranks) if job.ranks else []
    if left:
        said += (
            f"WORLD_SIZE is {job.world_size}, so all of these ranks wait for {ranks_in_words(left)}: start "
            f"{'it' if len(left) == 1 else 'them'}, on this or another host, or correct WORLD_SIZE. "
        )
    pid = next(iter(job.ranks.values()), "PID")
    return f"{said}To find out where a process waits: py-spy dump --pid {pid}"


_MOST_STARTED = 8
_MOST_RANKS = 1 << 16


def missing_ranks(world_size: int | None, known: Iterable[int]) -> list[int]:
    """Return the ranks of a job that are not known, in order; empty if the size of the job is unknown."""
    return sorted(set(range(min(world_size or 0, _MOST_RANKS))).difference(known))


def _numbers_in_environment(pid: int) -> dict[str, int]:
    """Return the environment variables of a process that contain a number."""
    with suppress(OSError):
        return {name.decode(): int(value) for name, value in _NUMBER.findall(Path(f"/proc/{pid}/environ").read_bytes())}
    return {}


_NUMBER = re.compile(rb"(?:^|\0)(\w+)=(\d{1,9})(?=\0|$)")


def holder_of_lock(pid: int, locks: Path = Path("/proc/locks")) -> int | None:
    """Return the PID of the process that holds the file lock that process `pid` is waiting for, or ``None``."""
    holders: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in locks.read_text(encoding="ascii", errors="replace").splitlines():
            number, *words = line.split()
            if words[0] != "->":
                holders[number] = int(words[3])
            elif int(words[4]) == pid:
                return holders.get(number)
    return None


def _started_ns(pid: int) -> int | None:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        since_boot_ns = int(words[19]) * 1_000_000_000 // _TICKS_PER_S
        return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _does_another_run(pid: int, thread: int) -> bool:
    """Return True if any thread of the process except the given one is running or runnable."""
    with suppress(OSError):
        others = (folder for folder in Path(f"/proc/{pid}/task").iterdir() if folder.name != str(thread))
        return any(found is not None and found.state == "R" for found in map(stat_of, others))
    return False


def _moved_bytes(pid: int, thread: int) -> int:
    path = Path(f"/proc/{pid}/task/{thread}/io")
    return sum(number_in(path, name) or 0 for name in ("rchar:", "wchar:"))


def num_swapped_in() -> int:
    """Return the number of pages that this machine has swapped in so far; 0 if the system does not report it."""
    return number_in(OF_MACHINE, "pswpin") or 0
