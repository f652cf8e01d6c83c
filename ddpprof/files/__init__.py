"""Paths of files on this machine, or anywhere that fsspec can reach, made from the user's text."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ddpprof.errors import DdpprofError
from ddpprof.files.remote import RemotePath, driver_of

__all__ = ["Location", "RemotePath", "identity", "local", "location", "spelled"]

Location = Path | RemotePath

_SCHEME = "://"
_NAME_OF_SCHEME = re.compile(r"(?:^|(?<=::))[A-Za-z][\w+.-]*(?=::|://)")
_OF_THIS_MACHINE = ("file://", "local://")


def location(text: str) -> Location:
    """Return the path for a text. Raises `DdpprofError` if no driver for it is installed."""
    if _SCHEME not in text:
        return Path(text)
    text = _NAME_OF_SCHEME.sub(lambda scheme: scheme[0].lower(), text)
    for scheme in _OF_THIS_MACHINE:
        if text.startswith(scheme):
            return Path(text.removeprefix(scheme))
    driver_of(text)
    return RemotePath(text)


def local(text: str) -> Path:
    """Return a path for files that grow or are renamed. Raises `DdpprofError` if the path is not on this machine."""
    path = location(text)
    if isinstance(path, RemotePath):
        raise DdpprofError(f"{path} is not on this machine: give a local folder, and copy it there when it is complete")
    return path


def spelled(path: Location) -> str:
    """Return the text from which `location` makes the same path. Unlike ``str``, it includes passwords."""
    return path.url if isinstance(path, RemotePath) else str(path)


def identity(path: Location) -> str | None:
    """Return a text that changes when the file does; ``None`` if there is no file."""
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
