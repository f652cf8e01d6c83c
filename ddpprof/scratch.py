"""Temporary folders for the duration of a command. Each use first removes those left by killed commands."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpprof.own_files import temporary_folder
from ddpprof.signals import deferred_signals

_NAME = "ddpprof"


def choose_temporary_directory() -> Path:
    """Return the directory for temporary files. Raises ``OSError``.

    Python tries it once with a file of its own, which would be left if a signal came just then.
    """
    with deferred_signals():
        return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder that only this user can read, and remove it at the end. Raises ``OSError``."""
    with temporary_folder(choose_temporary_directory(), _NAME) as folder:
        yield folder
