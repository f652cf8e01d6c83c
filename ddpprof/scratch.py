"""Folders for the time that a command takes. What commands that were killed left of theirs goes with the next one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpprof.own_files import temporary_folder

_NAME = "ddpprof"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder that only this user can read, and remove it. Raises ``OSError``."""
    with temporary_folder(Path(tempfile.gettempdir()), _NAME) as folder:
        yield folder
