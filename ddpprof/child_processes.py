"""How ddpprof starts processes of its own, so that they run no code from the folder in which the user stands.

Python puts the working directory, which may be somebody else's run, first on the module path of ``python -m …`` and of
every process that `multiprocessing` spawns. The option ``-P`` and the variable ``PYTHONSAFEPATH`` forbid that.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""environment of processes that start Python processes in their turn"""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def python_command(words: Sequence[str]) -> list[str]:
    """Return the command that starts this Python with `words`."""
    return [sys.executable, "-P", *words]


@contextmanager
def safe_path() -> Iterator[None]:
    """Let processes that `multiprocessing` starts meanwhile, its resource tracker among them, have a safe path."""
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


def end_with_parent() -> None:
    """Ask the system to end this process when its parent dies. For ``preexec_fn``: it runs in the child."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def adopt_orphans() -> None:
    """Make descendants whose parent dies children of this process, so that they can be found and ended."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(process: int) -> list[int]:
    """Return the numbers of the processes that it has started, or adopted, and that were not waited for."""
    found = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in listed.read_text(encoding="ascii").split()]
    return found


def descendants(process: int) -> list[int]:
    return [one for child in children(process) for one in (child, *descendants(child))]


def kill_descendants() -> None:
    """Kill all that this process has started, and what they started, and wait until they are gone."""
    while left := descendants(os.getpid()):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for child in children(os.getpid()):
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
