"""Create and remove ddpprof's files, in folders where other users may have created links.

Links to files or folders are never followed. A file is written under a temporary name that cannot be guessed, and then
renamed, so that readers never see a partial file. The writer holds a lock on the temporary file. The system releases
the lock if the process is killed. The next process that writes the same file removes unlocked temporary files.

Temporary folders exist for the duration of a command. Folders left by killed commands are removed first.

The user's cache folder contains a secret key. The seal of a file is a hash of its content with this key. It proves that
the same user wrote the file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
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
"""name of the environment variable that makes new files readable by all users of the machine; ``--world-readable`` sets
it
"""
_PART = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.part(?:\.tmp)?")
"""pattern for the names that `part_name` returns, and for the temporary names that Kineto derives from these"""
_SURELY_DEAD_S = 24 * 3600
"""on a file system without locks, the process that wrote a part file is assumed to have died if the file is older than
this
"""


def part_name(name: str) -> str:
    """Return a temporary name for writing the file `name`."""
    return f".{name}.{os.getpid()}-{os.urandom(4).hex()}.part"


def name_of_part(name: str) -> str | None:
    """Return the name of the file to which the part file `name` belongs; ``None`` if it is not a part file."""
    match = _PART.fullmatch(name)
    return match.group(1) if match else None


def _mode(full: int) -> int:
    """Return the mode of a new file or folder, before the user's umask is applied.

    Traces and commands are readable by all users only if the user requests it.
    """
    return full & (0o755 if os.environ.get(WORLD_READABLE) else 0o750)


_SPARE = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
"""file descriptors kept in reserve. When the process reaches its limit of open files, they are closed so that it can
still write files
"""


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
    """Return the descriptor of a new file. Raises ``OSError``, for example if the name exists."""
    return _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _mode(0o644))


def append_to(path: Path) -> int:
    """Return a descriptor that appends to the file. If necessary, create the file. Raises ``OSError`` for a link."""
    return _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, _mode(0o644))


def overwrite(path: Path) -> int:
    """Return the descriptor of a new file that replaces any existing file. Raises ``OSError``."""
    path.unlink(missing_ok=True)
    return create(path)


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a file. Raises ``OSError``, for example if it is a link, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def create_locked(path: Path, num_bytes: int, begin: bytes) -> int:
    """Return the descriptor of a new file that only this user can read, locked until the descriptor is closed.

    The file appears already locked and `num_bytes` long, with `begin` as its first bytes. Raises ``OSError``, for
    example if there is not enough space.
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
    """Yield the path of a new, empty file, which replaces `path` at the end of the block, or is removed on an error.

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
    """Yield a new folder that only this user can read, and remove it at the end. Raises ``OSError``.

    Folders that killed processes have left under the same `name` are removed first. Signals are deferred while the
    folder is created or removed.
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
    """Create and lock a part file for `path`. Return its path and the descriptor that holds the lock."""
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
        # Another process removed the part file between its creation and its lock.


class LockedError(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder
        """host and PID of the process that holds the lock"""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on the file `path`. The system releases the lock if the process is killed.

    Raises `LockedError` while another process holds it, and ``OSError``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _mode(0o644))
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 300, 0).decode(errors="replace")
            raise LockedError(holder or "with an unknown ID") from error
        except OSError:  # a file system without locks
            pass
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def reserved(directory: Path) -> Iterator[None]:
    """Reserve `directory` for this process among all processes of this host.

    The reservation is the name of a socket, which the system releases when the process ends. No file is written. Raises
    `LockedError` while another process holds the reservation.
    """
    name = _reserved_name(directory)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        try:
            held.bind(name)
            held.listen(_MOST_QUESTIONS)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise LockedError(_holder_of(name) or "unknown") from error
        yield


_MOST_QUESTIONS = 4096
"""number of times that other processes can ask for the PID of the process that has reserved a directory"""


def holder_of(directory: Path) -> str | None:
    """Return the PID of the process on this host that has reserved `directory`, or ``None`` if there is none.

    The result is ``"unknown"`` after `_MOST_QUESTIONS` calls for this reservation.
    """
    return _holder_of(_reserved_name(directory))


def _reserved_name(directory: Path) -> str:
    key = hashlib.sha256(os.fsencode(directory.absolute().resolve())).hexdigest()
    return f"\0ddpprof-{os.getuid()}-{key}"


def _holder_of(name: str) -> str | None:
    """Return the PID of the process that listens on the socket `name`; ``None`` if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
        except BlockingIOError:  # the queue of connections, which are never accepted, is full
            return "unknown"
        except OSError:
            return None
        return str(struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` so that readers see either the old or the new file. Raises ``OSError``."""
    with whole_file(path) as part, os.fdopen(_open(part, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:
        file.write(content)


def write_named(path: Path, content: bytes) -> None:
    """Write a file to a path chosen by the user. Raises ``OSError``.

    A regular file is replaced atomically. A link, pipe or device is written directly.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(content)
    else:
        write_whole(path, content)


def remove_left_parts(folder: Path, name: str | None = None) -> None:
    """Remove part files that dead processes have left in `folder`; with `name`, only the part files of that file."""
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
    """Return True if no other process holds the lock.

    On a file system without locks, the file's age is used instead.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return os.fstat(descriptor).st_mtime < time.time() - _SURELY_DEAD_S
    return True


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield another path to the file `path` that is short enough for a socket address. Raises ``OSError``."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def is_folder(path: Path) -> bool:
    """Return True if the path is a folder and not a link to a folder."""
    return path.is_dir() and not path.is_symlink()


def make_named_folder(path: Path) -> None:
    """If necessary, create a folder at a path chosen by the user. The path may be a link. Raises ``OSError``."""
    path.mkdir(_mode(0o755), parents=True, exist_ok=True)


def make_private_folder(path: Path) -> None:
    """Create a folder that only this user can access, if necessary. Raises ``OSError``."""
    path.mkdir(0o700, exist_ok=True)


def narrow(path: Path) -> None:
    """Restrict the permissions of a file created by other code to the permissions of ddpprof's files.

    Raises ``OSError``.
    """
    path.chmod(path.stat().st_mode & _mode(0o644))


def remove_file(path: Path) -> None:
    """Remove the file, if it exists. A link is removed, but not its target. Raises ``OSError``."""
    path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create the folder if necessary. Raises ``OSError``, for example if the path is a link."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, and ddpprof does not follow links when it writes to a run", str(path))
    path.mkdir(_mode(0o755), parents=True, exist_ok=True)


def remove_folder(path: Path) -> None:
    """Remove the folder and as much of its content as possible. A link is removed, but not its target."""
    if path.is_symlink():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


_NAME = "ddpprof"
_LONGEST_WITH_SOCKETS = 40
"""maximum length in bytes of a directory's path. Paths of sockets two levels below the directory then have at most the
107 bytes that the system allows
"""
_SHORT = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 (the folder in it is created exclusively)


def choose_temporary_directory() -> Path:
    """Return the directory for temporary files. Raises ``OSError``.

    Signals are deferred, because Python creates a test file in the directory and could not delete it after a signal.
    """
    import tempfile  # most processes do not need this module

    with deferred_signals():
        return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder(*, for_sockets: bool = False) -> Iterator[Path]:
    """Yield an empty folder that only this user can read, and remove it at the end. Raises ``OSError``.

    `for_sockets`: the path must be short, because `multiprocessing` will create sockets in the folder.
    """
    parent = choose_temporary_directory()
    if for_sockets and len(os.fsencode(parent)) > _LONGEST_WITH_SOCKETS:
        parent = next((one for one in _SHORT if os.access(one, os.W_OK | os.X_OK)), parent)
    with temporary_folder(parent, _NAME) as folder:
        yield folder


SEAL_BYTES = 32
_KEY_BYTES = 32
_KEY_FILE = "key"


def user_folder() -> Path | None:
    """Return this user's cache folder, created if necessary; ``None`` if it cannot be created."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddpprof"
        make_named_folder(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    return folder


def user_key() -> bytes | None:
    """Return this user's secret key, created if necessary; ``None`` if it cannot be stored."""
    folder = user_folder()
    if folder is None:
        return None
    path = folder / _KEY_FILE
    if _read_key(path) is None:
        with suppress(OSError), whole_file(path) as part:
            part.write_bytes(os.urandom(_KEY_BYTES))
            part.chmod(0o600)
    return _read_key(path)  # another process may have created one in the meantime


def _read_key(path: Path) -> bytes | None:
    try:
        descriptor = open_regular(path)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not is_of_this_user(os.fstat(descriptor)) or os.fstat(descriptor).st_mode & 0o077:
            return None
        key = file.read(_KEY_BYTES + 1)
    return key if len(key) == _KEY_BYTES else None


def is_of_this_user(found: os.stat_result) -> bool:
    """Return True if this user owns the file and nobody else may change it."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def seal_of(content: bytes, key: bytes) -> str:
    """Return the seal of `content`: a keyed hash, as hexadecimal text."""
    return hashlib.blake2b(content, key=key, digest_size=SEAL_BYTES).hexdigest()


def is_seal_of(seal: str, content: bytes, key: bytes) -> bool:
    """Return True if `seal` was made from `content` with `key`."""
    return hmac.compare_digest(seal.encode(), seal_of(content, key).encode())
