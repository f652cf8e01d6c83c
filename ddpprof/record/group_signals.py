"""Did a signal reach the whole process group, and so the job, too? Passing it on would deliver it twice.

A terminal's Ctrl-C can be told by itself; a signal that a program sent, such as a notebook or a CI runner, cannot.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from ddpprof.child_processes import Process, end_with_parent, helper_environment, start

_DELIVERED_S = 0.01
"""seconds in which a signal has reached all processes of a group"""


class Bystander:
    """A child in this process group that does nothing: all signals that are blocked here stay pending there."""

    def __init__(self) -> None:
        """Start it. Block the signals before, and call this in a process without other threads."""
        self._process: Process | None = None
        sleep = shutil.which("sleep", path=os.defpath)  # the system's, whatever PATH is
        if sleep is None:
            return  # so every signal counts as sent to this process alone
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with suppress(OSError):
            begin = partial(end_with_parent, signal.SIGKILL)
            self._process = start([sleep, "infinity"], helper_environment(), begin, **streams)

    def has_got(self, number: int) -> bool:
        """Return whether the signal, which has reached this process just now, or one like it, was sent to the group."""
        if self._process is None:
            return False
        time.sleep(_DELIVERED_S)
        with suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
            pending = int(status.partition("\nShdPnd:")[2].split()[0], 16)
            return bool(pending >> (number - 1) & 1)
        return False

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
