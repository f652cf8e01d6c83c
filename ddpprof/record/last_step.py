"""How far did this rank come? A number in a file that is rewritten after every step, also after the recorded ones.

The operating system has it at once, so it outlives a process that is killed. The file is not mapped into memory:
truncating it would end the training with SIGBUS.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from ddpprof import own_files
from ddpprof.rundir import LAST_STEP


class LastStep:
    """The number of finished steps, and when the last one ended. Every method raises ``OSError``."""

    def __init__(self, path: Path) -> None:
        self._file = own_files.overwrite(path)

    def ends(self, num_steps: int) -> None:
        """Note that a step has ended, and that there are now `num_steps`."""
        os.pwrite(self._file, struct.pack(LAST_STEP, num_steps, time.time_ns()), 0)

    def close(self) -> None:
        os.close(self._file)
