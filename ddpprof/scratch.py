"""Temporary folders for the duration of a command. Each use first removes those left by killed commands."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpprof.own_files import temporary_folder
from ddpprof.signals import deferred_signals

_NAME = "ddpprof"
_LONGEST_WITH_SOCKETS = 40
"""maximum length of a directory, in bytes, such that sockets two folders below it have paths of at most 107 bytes"""
_SHORT = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 (the folder in it is created exclusively)


def choose_temporary_directory() -> Path:
    """Return the directory for temporary files. Raises ``OSError``.

    Python tests the directory once by creating a file, which would be left behind if a signal arrived at that moment.
    """
    with deferred_signals():
        return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder(*, for_sockets: bool = False) -> Iterator[Path]:
    """Yield an empty folder that only this user can read, and remove it at the end. Raises ``OSError``.

    `for_sockets`: Python's `multiprocessing` will put sockets into it, so its path must be short.
    """
    parent = choose_temporary_directory()
    if for_sockets and len(os.fsencode(parent)) > _LONGEST_WITH_SOCKETS:
        parent = next((one for one in _SHORT if os.access(one, os.W_OK | os.X_OK)), parent)
    with temporary_folder(parent, _NAME) as folder:
        yield folder
