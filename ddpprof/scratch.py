"""Folders for the time that a command takes. What commands that were killed left of theirs goes with the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "ddpprof-"
_LOCK = ".in-use"
_SETTLED_S = 60
"""Folders that are younger may belong to a process that has not locked them yet."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder that only this user can read, and remove it. Raises ``OSError``."""
    _remove_left()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = None
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_left() -> None:
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_left(Path(entry.path)):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether a folder of this user is one of ours that nobody works with any more."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        if time.time() - status.st_mtime < _SETTLED_S:
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # another's, or of a version that did not lock them
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
