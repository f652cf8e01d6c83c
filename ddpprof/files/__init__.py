"""Paths of local files, and of remote files that fsspec supports.

There is a size limit even for files that ddpprof writes, because another program may have written them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from ddpprof.errors import DdpprofError
from ddpprof.files.remote import RemotePath, driver_of

__all__ = ["Location", "RemotePath", "identity", "local", "location", "spelled"]

Location = Path | RemotePath

_SCHEME = "://"
_NAME_OF_SCHEME = re.compile(r"(?:^|(?<=::))[A-Za-z][\w+.-]*(?=::|://)")
_OF_THIS_MACHINE = ("file://", "local://")


def location(text: str) -> Location:
    """Convert a string with a path or URL to a path. Raises `DdpprofError` if no driver for the URL is installed."""
    if _SCHEME not in text:
        return Path(text)
    text = _NAME_OF_SCHEME.sub(lambda scheme: scheme[0].lower(), text)
    for scheme in _OF_THIS_MACHINE:
        if text.startswith(scheme):
            return Path(text.removeprefix(scheme))
    driver_of(text)
    return RemotePath(text)


def local(text: str) -> Path:
    """Return `text` as a local path, for files that must be local. Raises `DdpprofError` for a remote path."""
    path = location(text)
    if isinstance(path, RemotePath):
        raise DdpprofError(
            f"{path} is not on this machine. Write to a local folder, and copy the folder when it is complete."
        )
    return path


def spelled(path: Location) -> str:
    """Return a string that `location` converts back to this path. Unlike ``str``, it includes passwords."""
    return path.url if isinstance(path, RemotePath) else str(path)


def identity(path: Location) -> str | None:
    """Return a string that changes when the file changes, or ``None`` if there is no file."""
    try:
        if not isinstance(path, RemotePath):
            found = path.stat()
            return f"{found.st_size}-{found.st_mtime_ns}"
        if (version := path.version()) is not None:
            return version
    except FileNotFoundError:
        return None
    except OSError:
        if not isinstance(path, RemotePath):
            return None
    return f"changed whenever asked: {os.urandom(8).hex()}"  # unknown


_MOST_BYTES = 512 * 10**6
"""maximum size of a file that is read as a whole; several times larger than the files of a job with thousands of
parameters and many steps
"""


def read_small(path: Path | RemotePath, most_bytes: int = _MOST_BYTES) -> bytes:
    """Return the content of a file. If the file is growing, only the part that existed when it was opened is read.

    Raises ``OSError`` if the file cannot be read, is a pipe or a device, or is larger than `most_bytes`. The size of a
    remote file is checked only if a listing of its folder contains the size.
    """
    if isinstance(path, RemotePath):
        _refuse_large(path, path.told_size() or 0, most_bytes)
        return path.read_bytes()
    with os.fdopen(open_file(path), "rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        _refuse_large(path, num_bytes, most_bytes)
        return file.read(num_bytes)  # reading `most_bytes` would allocate them all


def _refuse_large(path: Path | RemotePath, num_bytes: int, most_bytes: int) -> None:
    """Raise ``OSError`` if the file is larger than `most_bytes`."""
    if num_bytes > most_bytes:
        why = f"it is larger than {most_bytes / 10**6:g} MB, the limit for files of this kind"
        raise OSError(errno.EFBIG, why, str(path))


def open_file(path: Path) -> int:
    """Open a regular file, or a link to a regular file, for reading. Raises ``OSError`` for a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK: do not wait at a pipe
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))
