"""For what does a thread sleep? Its system call tells, or if that is hidden, the kernel's function it sleeps in."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from ddpprof.model.overdue import Wait

_CALLS_ON_FILES = {"x86_64": {0, 1, 17, 18, 19, 20}, "aarch64": {63, 64, 65, 66, 67, 68}}
"""numbers of read, write, and their variants"""
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
"""functions of the kernel in which threads sleep"""


def wait_of(thread: Path) -> Wait | None:
    """Return for what a thread sleeps; ``None`` if it does not, or the system does not tell.

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
    """Return the kind of the file on which a thread waits. A terminal is standard input, whatever its number."""
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
