"""Start child processes that import no code from the working directory and that end when ddpprof ends.

Python puts the working directory first on the module path of ``python -m …`` and of every process that
`multiprocessing` spawns. This directory may contain another user's files. The option ``-P`` and the variable
``PYTHONSAFEPATH`` prevent imports from it.

``python -m ddpprof.child_processes COMMAND`` is a guard process, which runs the command. The guard ends all of its
descendants on SIGTERM, which it also receives when its own parent is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ddpprof.redaction import is_secret

Process = subprocess.Popen[Any]

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""environment variables for child processes that start Python, so that Python imports no code from the working
directory
"""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def python_command(words: Sequence[str]) -> list[str]:
    """Return the command that starts this Python interpreter with the arguments `words`."""
    return [sys.executable, "-P", *words]


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep the working directory off the module path of processes that `multiprocessing` starts in the block."""
    before = {name: os.environ.get(name) for name in SAFE_PATH}
    os.environ.update(SAFE_PATH)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def start_resource_tracker() -> None:
    """Start `multiprocessing`'s resource tracker so that it ignores SIGHUP.

    When a terminal closes, all its processes receive SIGHUP. If the signal ended the tracker, `multiprocessing` would
    start a second tracker, which prints an error for every resource that was registered with the first tracker.
    """
    from multiprocessing import resource_tracker

    before = signal.getsignal(signal.SIGHUP)
    if before is None or threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the tracker inherits this
    try:
        resource_tracker.ensure_running()
    finally:
        signal.signal(signal.SIGHUP, before)


def end_with_parent() -> None:
    """Make the kernel end this process when its parent dies. Runs in the child, as ``preexec_fn``."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    begin: Callable[[], None] | None = end_with_parent,
    **options: Any,
) -> Process:
    """Start a process that ends when this process ends. Raises ``OSError``.

    `begin`: function that the new process calls before the command. If this process has threads, `begin` must be
    ``None``, and the child must end on its own. `options`: arguments of ``subprocess.Popen``.
    """
    return subprocess.Popen(command, env=environment, preexec_fn=begin, **options)  # noqa: PLW1509 (no threads here)


def helper_environment() -> dict[str, str]:
    """Return the environment for a helper process that runs no user code. It contains `SAFE_PATH` but no secrets."""
    return {name: value for name, value in os.environ.items() if not is_secret(name, value)} | SAFE_PATH


def adopt_orphans() -> None:
    """Make this process the new parent of orphaned descendants, so that it can find and end them."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(process: int) -> list[int]:
    """Return the PIDs of the children of `process`, including adopted ones, that have not been reaped."""
    found = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in listed.read_text(encoding="ascii").split()]
    return found


def descendants(process: int) -> list[int]:
    return [one for child in children(process) for one in (child, *descendants(child))]


def kill_descendants() -> None:
    """Kill all descendants of this process, and wait until they are gone."""
    while left := descendants(os.getpid()):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for child in children(os.getpid()):
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def end_descendants(grace_s: float) -> None:
    """Send SIGTERM to this process's own and adopted children, and SIGKILL to children still alive after `grace_s`."""
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while left := children(os.getpid()):
        for child in left:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            elif child not in asked:
                asked.add(child)
                os.kill(child, signal.SIGTERM)
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.05)


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` under a guard process."""
    return python_command(["-m", "ddpprof.child_processes", *command])


def _guard(command: Sequence[str]) -> int:
    adopt_orphans()
    signal.signal(signal.SIGTERM, _exit_at_signal)
    try:
        return start(command, os.environ).wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants(_GRACE_S)


def _exit_at_signal(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


_GRACE_S = 3.0
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

if __name__ == "__main__":
    sys.exit(_guard(sys.argv[1:]))
