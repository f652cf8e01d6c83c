"""How far did this rank come? A number in a file that is rewritten after every step, or every second by `PulseKeeper`.

The operating system has it at once, so it outlives a process that is killed. The file is not mapped into memory:
truncating it would end the training with SIGBUS.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from ddpprof import own_files
from ddpprof.rundir import LAST_STEP


class LastStep:
    """The number of finished steps, and when the last one ended. Every method raises ``OSError``."""

    def __init__(self, path: Path) -> None:
        self._file = own_files.overwrite(path)

    def is_over(self, num_steps: int, ended_ns: int) -> None:
        """Note that there are now `num_steps`, of which the last ended at `ended_ns`."""
        os.pwrite(self._file, struct.pack(LAST_STEP, num_steps, ended_ns), 0)

    def close(self) -> None:
        os.close(self._file)
