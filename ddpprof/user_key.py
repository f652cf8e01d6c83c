"""The user's cache folder, and a key in it that only this user has, to recognise what this user has sealed."""

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


def user_folder() -> Path | None:
    """Return this user's cache folder, created if necessary; ``None`` if it cannot be created."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddpprof"
        own_files.make_named_folder(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    return folder


def user_key() -> bytes | None:
    """Return this user's key, created if necessary; ``None`` if it cannot be stored."""
    folder = user_folder()
    if folder is None:
        return None
    path = folder / _KEY_FILE
    if _read_key(path) is None:
        with suppress(OSError), own_files.whole_file(path) as part:
            part.write_bytes(os.urandom(_KEY_BYTES))
            part.chmod(0o600)
    return _read_key(path)  # another process may have created one in the meantime


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
    """Return True if this user owns the file and nobody else may change it."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def seal_of(content: bytes, key: bytes) -> str:
    """Return the seal of `content` as hexadecimal text."""
    return hashlib.blake2b(content, key=key, digest_size=SEAL_BYTES).hexdigest()


def is_seal_of(seal: str, content: bytes, key: bytes) -> bool:
    """Return True if `seal` was made from `content` with `key`."""
    return hmac.compare_digest(seal.encode(), seal_of(content, key).encode())
