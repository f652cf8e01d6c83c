"""How far did this rank come? A number in a file that is rewritten after every step, or every second by `PulseKeeper`.

The operating system has it at once, so it outlives a process that is killed. The file is not mapped into memory:
truncating it would end the training with SIGBUS.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddpprof import own_files
from ddpprof.rundir import write_last_step


class LastStep:
    """The number of finished steps, and when the last one ended. Every method raises ``OSError``."""

    def __init__(self, path: Path) -> None:
        self._file = own_files.overwrite(path)

    def is_over(self, num_steps: int, ended_ns: int) -> None:
        """Note that there are now `num_steps`, of which the last ended at `ended_ns`."""
        write_last_step(self._file, num_steps, ended_ns)

    def close(self) -> None:
        os.close(self._file)
