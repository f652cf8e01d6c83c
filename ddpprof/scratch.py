"""Temporary folders for the duration of a command. Each use first removes those left by killed commands."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpprof.own_files import temporary_folder

_NAME = "ddpprof"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder that only this user can read, and remove it at the end. Raises ``OSError``."""
    with temporary_folder(Path(tempfile.gettempdir()), _NAME) as folder:
        yield folder
