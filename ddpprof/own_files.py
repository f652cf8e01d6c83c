"""Files that ddpprof creates and removes, in folders where somebody else may have laid links.

No link is followed: neither that which has the name of a file to be written, nor that which has the name of a folder.
A file is written beside, under a name that nobody can guess, and appears whole. What a process that was killed left of
one goes when the same file is written next.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MODE = 0o640
"""of new files, less what the user's umask takes away: traces and commands are not for everybody on the machine"""
_FOLDER_MODE = 0o750
_PART = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.part(?:\.tmp)?")
"""also what Kineto, told to write such a file, writes at first"""
_SETTLED_S = 60
"""Parts that are younger may belong to a process that has not locked them yet."""


def part_name(name: str) -> str:
    """Return a name for what is written beside the file `name`."""
    return f".{name}.{os.getpid()}-{os.urandom(4).hex()}.part"


def name_of_part(name: str) -> str | None:
    """Return the name of the file of which a file named `name` is a part; ``None`` where it is no part."""
    match = _PART.fullmatch(name)
    return match.group(1) if match else None


def create(path: Path) -> int:
    """Return the descriptor of a new file. Raises ``OSError``, also where anything has that name already."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)


def append_to(path: Path) -> int:
    """Return the descriptor of the file, made if need be, for lines at its end. Raises ``OSError`` at a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)


def overwrite(path: Path) -> int:
    """Return the descriptor of a new file in the place of what has that name. Raises ``OSError``."""
    path.unlink(missing_ok=True)
    return create(path)


def open_regular(path: Path) -> int:
    """Return the descriptor of a file to read. Raises ``OSError``, also where it is a link, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a new, empty file that takes the place of `path` at the end, or goes where the block raises.

    Raises ``OSError``.
    """
    remove_left_parts(path)
    part = path.with_name(part_name(path.name))
    descriptor = create(part)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
        os.close(descriptor)


class LockedError(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder
        """its host and number"""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; the system takes the lock of a process that is killed.

    Raises `LockedError` while another process holds it, and ``OSError``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 300, 0).decode(errors="replace")
            raise LockedError(holder or "that does not say its number") from error
        except OSError:  # a file system without locks
            pass
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} of {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` so that a reader sees the old file or the whole new one. Raises ``OSError``."""
    with whole_file(path) as part:
        part.write_bytes(content)


def remove_left_parts(path: Path) -> None:
    """Remove what processes that are dead left of `path`."""
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if name_of_part(name) == path.name and _is_left(path.with_name(name)):
                path.with_name(name).unlink(missing_ok=True)


def _is_left(part: Path) -> bool:
    """Return whether nobody writes it any more: the system takes the lock of a process that dies."""
    try:
        descriptor = open_regular(part)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_mtime > time.time() - _SETTLED_S:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def is_folder(path: Path) -> bool:
    """Return whether it is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def make_folder(path: Path) -> None:
    """Make the folder if need be. Raises ``OSError``, also where a link has that name."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, and ddpprof writes nothing behind links in a run", str(path))
    path.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)


def remove_folder(path: Path) -> None:
    """Remove the folder and all that is in it, as far as that can be done; of a link only the link."""
    if path.is_symlink():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
