"""Files that ddpprof creates and removes, in folders where other users may have planted links.

No link is followed, whether it has the name of a file to be written or of a folder. A file is written under a name
that nobody can guess, and then renamed, so that it appears whole. The writer holds a lock on it, which the system
releases if the process is killed; the next process that writes the same file removes unlocked leftovers.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddpprof.signals import deferred_signals

WORLD_READABLE = "DDPPROF_WORLD_READABLE"
"""environment variable that lets everybody on the machine read new files; ``--world-readable`` sets it"""
_PART = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.part(?:\.tmp)?")
"""pattern of names from `part_name`, and of the names that Kineto writes first when told to write such a file"""
_SURELY_DEAD_S = 24 * 3600
"""seconds; on a file system without locks, an older part was left by a dead process"""


def part_name(name: str) -> str:
    """Return a temporary name for writing the file `name`."""
    return f".{name}.{os.getpid()}-{os.urandom(4).hex()}.part"


def name_of_part(name: str) -> str | None:
    """Return the name of the file that a part named `name` belongs to; ``None`` if it is not a part."""
    match = _PART.fullmatch(name)
    return match.group(1) if match else None


def _mode(full: int) -> int:
    """Return the mode of a new file or folder, which the user's umask restricts further.

    Traces and commands are not readable by everybody on the machine unless the user asks for it.
    """
    return full & (0o755 if os.environ.get(WORLD_READABLE) else 0o750)


_SPARE = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
"""kept so that a process that has as many files open as it may can still say so"""


def _open(path: Path, flags: int, mode: int = 0o777) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.EMFILE or not _SPARE:
            raise
    while _SPARE:
        os.close(_SPARE.pop())
    return os.open(path, flags | os.O_CLOEXEC, mode)


def create(path: Path) -> int:
    """Return the descriptor of a new file. Raises ``OSError``, also if the name is taken."""
    return _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _mode(0o644))


def append_to(path: Path) -> int:
    """Return a descriptor that appends to the file, which is created if need be. Raises ``OSError`` for a link."""
    return _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, _mode(0o644))


def overwrite(path: Path) -> int:
    """Return the descriptor of a new file that replaces anything of that name. Raises ``OSError``."""
    path.unlink(missing_ok=True)
    return create(path)


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a file. Raises ``OSError``, also if it is a link, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def create_locked(path: Path, num_bytes: int, begin: bytes) -> int:
    """Return the descriptor of a new file that only this user can read, locked until the descriptor is closed.

    The file appears locked, with all of its `num_bytes` in place, of which `begin` are the first.
    Raises ``OSError``, also if there is no space for it.
    """
    part = path.with_name(f".{path.name}")
    file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.posix_fallocate(file, 0, num_bytes)
        os.pwrite(file, begin, 0)
        part.rename(path)
    except BaseException:
        os.close(file)
        part.unlink(missing_ok=True)
        raise
    return file


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a new, empty file that replaces `path` at the end, or is removed if the block raises.

    Raises ``OSError``.
    """
    remove_left_parts(path.parent, path.name)
    part, descriptor = _locked_part(path, create)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """Give a new folder that only this user can read, and remove it at the end. Raises ``OSError``.

    Folders of that `name` left behind by killed processes are removed first. Signals wait until the folder is there, or
    gone.
    """
    remove_left_parts(parent, name)
    folder, descriptor = None, -1
    try:
        with deferred_signals():
            folder, descriptor = _locked_part(parent / name, _create_folder)
        yield folder
    finally:
        with deferred_signals():
            if folder is not None:
                remove_folder(folder)
                os.close(descriptor)


def _create_folder(path: Path) -> int:
    path.mkdir(0o700)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _locked_part(path: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Create a part of `path` and lock it; return it with the descriptor that holds the lock."""
    while True:
        part = path.with_name(part_name(path.name))
        descriptor = -1
        try:
            descriptor = make(part)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(part.lstat(), os.fstat(descriptor)):
                return part, descriptor
        except FileNotFoundError:
            if not path.parent.exists():
                raise
        if descriptor != -1:
            os.close(descriptor)
        # Another process removed the part as a leftover between its creation and its lock.


class LockedError(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder
        """host and process number of the holder"""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; the system takes the lock of a process that is killed.

    Raises `LockedError` while another process holds it, and ``OSError``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _mode(0o644))
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 300, 0).decode(errors="replace")
            raise LockedError(holder or "an unknown process") from error
        except OSError:  # a file system without locks
            pass
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} of {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def reserved(directory: Path) -> Iterator[None]:
    """Keep `directory` for this process among all of this host's; nothing is written, so that nothing can be left.

    The name of a socket, which the system frees when the process ends however it does. Raises `LockedError` while
    another process has it.
    """
    name = _reserved_name(directory)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        try:
            held.bind(name)
            held.listen(0)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise LockedError(_holder_of(name) or "unknown") from error
        yield


def is_reserved(directory: Path) -> bool:
    """Return whether a process of this host has reserved `directory`."""
    return _holder_of(_reserved_name(directory)) is not None


def _reserved_name(directory: Path) -> str:
    key = hashlib.sha256(os.fsencode(directory.absolute().resolve())).hexdigest()
    return f"\0ddpprof-{os.getuid()}-{key}"


def _holder_of(name: str) -> str | None:
    """Return the number of the process that listens under `name`; ``None`` if none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
        except BlockingIOError:  # others are asking, too
            return "unknown"
        except OSError:
            return None
        return str(struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` so that a reader sees the old file or the whole new one. Raises ``OSError``."""
    with whole_file(path) as part, os.fdopen(_open(part, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:
        file.write(content)


def write_named(path: Path, content: bytes) -> None:
    """Write a file that the user named. Replace a regular file as a whole; write through a link, pipe or device.

    Raises ``OSError``.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(content)
    else:
        write_whole(path, content)


def remove_left_parts(folder: Path, name: str | None = None) -> None:
    """Remove the parts that dead processes left in `folder`: those of `name`, or all."""
    with suppress(OSError):
        for entry in os.listdir(folder):
            of = name_of_part(entry)
            if of is not None and name in (None, of):
                _remove_if_left(folder / entry)


def _remove_if_left(part: Path) -> None:
    try:
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not _is_locked_by_nobody(descriptor):
            return
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(part, ignore_errors=True)
        elif stat.S_ISREG(found.st_mode):
            part.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _is_locked_by_nobody(descriptor: int) -> bool:
    """Return whether nobody holds the lock: this process could take it or, without locks, the file is old."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return os.fstat(descriptor).st_mtime < time.time() - _SURELY_DEAD_S
    return True


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Give another path of the file, short enough for a socket, while the block runs. Raises ``OSError``."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def make_named_folder(path: Path) -> None:
    """Create a folder that the user named, if need be; a link to a folder will do. Raises ``OSError``."""
    path.mkdir(_mode(0o755), parents=True, exist_ok=True)


def make_private_folder(path: Path) -> None:
    """Create a folder that only this user may enter, if need be. Raises ``OSError``."""
    path.mkdir(0o700, exist_ok=True)


def narrow(path: Path) -> None:
    """Remove the permissions that new files do not have from a file made by other code. Raises ``OSError``."""
    path.chmod(path.stat().st_mode & _mode(0o644))


def remove_file(path: Path) -> None:
    """Remove the file, if it exists; for a link, only the link. Raises ``OSError``."""
    path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create the folder if need be. Raises ``OSError``, also if a link has that name."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, and ddpprof does not write through links in a run", str(path))
    path.mkdir(_mode(0o755), parents=True, exist_ok=True)


def remove_folder(path: Path) -> None:
    """Remove the folder and its content as far as possible; for a link, only the link."""
    if path.is_symlink():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
