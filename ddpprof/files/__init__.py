"""Where files are: on this machine, or where fsspec reaches. What a user typed becomes a path here."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ddpprof.errors import DdpprofError
from ddpprof.files.remote import RemotePath, driver_of

__all__ = ["Location", "RemotePath", "identity", "is_remote", "local", "location", "spelled"]

Location = Path | RemotePath

_SCHEME = "://"
_NAME_OF_SCHEME = re.compile(r"(?:^|(?<=::))[A-Za-z][\w+.-]*(?=::|://)")
_OF_THIS_MACHINE = ("file://", "local://")


def location(text: str) -> Location:
    """Raises `DdpprofError` where no driver for it is installed."""
    if _SCHEME not in text:
        return Path(text)
    text = _NAME_OF_SCHEME.sub(lambda scheme: scheme[0].lower(), text)
    for scheme in _OF_THIS_MACHINE:
        if text.startswith(scheme):
            return Path(text.removeprefix(scheme))
    driver_of(text)
    return RemotePath(text)


def local(text: str) -> Path:
    """Of what is written bit by bit, or renamed. Raises `DdpprofError` where it is not on this machine."""
    path = location(text)
    if isinstance(path, RemotePath):
        raise DdpprofError(f"{path} is not on this machine: give a folder that is, and copy it when it is complete")
    return path


def spelled(path: Location) -> str:
    """What `location` makes the same path of; unlike ``str``, with passwords."""
    return path.url if isinstance(path, RemotePath) else str(path)


def is_remote(path: Location) -> bool:
    return isinstance(path, RemotePath)


def identity(path: Location) -> str | None:
    """Other text once the file has changed; ``None`` where there is no file."""
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
    return f"changed whenever asked: {os.urandom(8).hex()}"  # nobody says
