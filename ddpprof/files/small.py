"""Reading of files that are small if ddpprof wrote them, but may be anything if someone else did."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ddpprof.files.remote import RemotePath

_MOST_BYTES = 512 * 10**6
"""several times the size that a job with thousands of parameters and many steps writes"""


def read_small(path: Path | RemotePath, most_bytes: int = _MOST_BYTES) -> bytes:
    """Return the content up to the file's length when it was opened, because the file may be growing.

    Raises ``OSError``, also for a pipe or a device, and for more than `most_bytes`, if a remote folder has the size.
    """
    if isinstance(path, RemotePath):
        _refuse_large(path, path.told_size() or 0, most_bytes)
        return path.read_bytes()
    with os.fdopen(open_file(path), "rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        _refuse_large(path, num_bytes, most_bytes)
        return file.read(num_bytes)  # not `most_bytes`, for which memory would be allocated at once


def _refuse_large(path: Path | RemotePath, num_bytes: int, most_bytes: int) -> None:
    """Raise ``OSError`` if the file has more than `most_bytes`."""
    if num_bytes > most_bytes:
        why = f"it is larger than {most_bytes / 10**6:g} MB, the limit for files of this kind"
        raise OSError(errno.EFBIG, why, str(path))


def open_file(path: Path) -> int:
    """Return a descriptor for reading a file or a link to one. Raises ``OSError`` for a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK: does not wait at a pipe
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))
