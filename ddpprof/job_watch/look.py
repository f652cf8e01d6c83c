"""Each look answers one question about a running job, again and again; this is what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

Say = Callable[[str], None]


class Look(Protocol):
    every_s: float
    """seconds between two looks, or more if a look takes long"""

    def at(self, directory: Path, missed_s: float) -> None:
        """Look at the run in a directory. `missed_s`: by how much the time has gone on unseen since the last look."""

    def last_time(self, directory: Path) -> None:
        """Look at a run whose job has ended."""
