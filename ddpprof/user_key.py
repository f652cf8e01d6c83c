"""Recognition of this user's own files: a seal on bytes, made with a key that nobody else has.

Whoever hands over a run can put files into it that look like ddpprof's own, but cannot seal them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from contextlib import suppress
from pathlib import Path

from ddpprof import own_files

SEAL_BYTES = 32
_KEY_BYTES = 32
_KEY_FILE = "key"
_CHUNK_BYTES = 1 << 20


def user_folder() -> Path | None:
    """Return this user's cache folder, created if need be; ``None`` if there is no place for it."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddpprof"
        own_files.make_named_folder(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    return folder


def user_key() -> bytes | None:
    """Return this user's key, created if need be; ``None`` if it cannot be stored."""
    folder = user_folder()
    if folder is None:
        return None
    path = folder / _KEY_FILE
    if _read_key(path) is None:
        with suppress(OSError), own_files.whole_file(path) as part:
            part.write_bytes(os.urandom(_KEY_BYTES))
            part.chmod(0o600)
    return _read_key(path)  # another process may have created one meanwhile


def _read_key(path: Path) -> bytes | None:
    try:
        descriptor = own_files.open_regular(path)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not is_of_this_user(os.fstat(descriptor)) or os.fstat(descriptor).st_mode & 0o077:
            return None
        key = file.read(_KEY_BYTES + 1)
    return key if len(key) == _KEY_BYTES else None


def is_of_this_user(found: os.stat_result) -> bool:
    """Return whether this user owns the file, and nobody else may change it."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def seal_of(content: bytes, key: bytes) -> str:
    """Return the seal as hexadecimal text."""
    return hashlib.blake2b(content, key=key, digest_size=SEAL_BYTES).hexdigest()


def is_seal_of(seal: str, content: bytes, key: bytes) -> bool:
    """Return whether `seal` was made from `content` with `key`."""
    return hmac.compare_digest(seal.encode(), seal_of(content, key).encode())


def seal_file(path: Path, key: bytes) -> None:
    """Append the seal of the file's content. Raises ``OSError``."""
    with path.open("r+b") as file:
        digest = hashlib.blake2b(key=key, digest_size=SEAL_BYTES)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        file.write(digest.digest())


def is_sealed_file(path: Path, key: bytes, most_bytes: int) -> bool:
    """Return whether it is this user's file, sealed by `seal_file` with `key` and not changed since."""
    try:
        descriptor = own_files.open_regular(path)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        left = found.st_size - SEAL_BYTES
        if not is_of_this_user(found) or not 0 <= left <= most_bytes:
            return False
        digest = hashlib.blake2b(key=key, digest_size=SEAL_BYTES)
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
        return hmac.compare_digest(file.read(SEAL_BYTES), digest.digest())
