"""Was a signal sent to the whole process group, or to this process alone?

A terminal's Ctrl-C is recognised by its `si_code`; a signal that a program sent, such as a notebook or a CI runner,
is not.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from ddpprof.child_processes import Process, helper_environment, start

_SI_KERNEL = 0x80
"""`si_code` of a signal from the terminal, which sends it to a whole group"""
_DELIVERED_S = 0.01
"""seconds after which a signal to a group has reached all of its processes"""


def group_of(process: int) -> int | None:
    """Return the number of a process's group; ``None`` if there is no such process."""
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return None


class Bystander:
    """A child in this process group that does nothing, so that signals that are blocked here stay pending there."""

    def __init__(self) -> None:
        """Start it. The signals must be blocked by then."""
        self._process: Process | None = None
        self._start()

    def _start(self) -> None:
        command = shutil.which("cat", path=os.defpath)  # the system's, whatever PATH is; it ends when its input does
        if command is not None:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            with suppress(OSError):
                self._process = start([command], helper_environment(), None, **streams)

    def got(self, info: signal.struct_siginfo) -> bool:
        """Return whether a signal, which has just arrived, was sent to the group; False without a bystander."""
        time.sleep(_DELIVERED_S)
        to_group = info.si_code == _SI_KERNEL or self._has_pending(info.si_signo)
        if to_group:  # the next one will be pending in another bystander
            self.end()
            self._start()
        return to_group

    def _has_pending(self, number: int) -> bool:
        if self._process is None:
            return False
        with suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
            pending = int(status.partition("\nShdPnd:")[2].split()[0], 16)
            return bool(pending >> (number - 1) & 1)
        return False

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
