"""How far did this rank come? A number in a file that is written anew after every step, also after the recorded ones.

It is with the operating system at once, and so outlives a process that is killed. Not mapped into memory: whoever cut
the file short would end the training with SIGBUS.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from ddpprof import own_files
from ddpprof.rundir import LAST_STEP


class LastStep:
    """The number of finished steps, and when the last of them ended. Every method raises ``OSError``."""

    def __init__(self, path: Path) -> None:
        self._file = own_files.overwrite(path)

    def ends(self, num_steps: int) -> None:
        """A step has ended; now there are `num_steps`."""
        os.pwrite(self._file, struct.pack(LAST_STEP, num_steps, time.time_ns()), 0)

    def close(self) -> None:
        os.close(self._file)
