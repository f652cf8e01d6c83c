"""Storage of entries, in the user's cache folder or only for one command.

An entry is valid as long as its files have the same size and modification time. Entries made by other code, for other
modules or other steps have other names.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ddpprof import own_files
from ddpprof.engine.topic import versions
from ddpprof.errors import DdpprofError
from ddpprof.files import Location, RemotePath, spelled
from ddpprof.load.rank import RankFiles
from ddpprof.model import DdpModule
from ddpprof.own_files import is_of_this_user, scratch_folder, user_folder
from ddpprof.pipeline.entry import BadEntryError, read_about, stamps_of
from ddpprof.report.topics import encode
from ddpprof.version import __version__

_FOLDER = "summaries"
_UNUSED_S = 30 * 24 * 3600
"""seconds after which a path's entries are removed if they are not read"""


class Cache:
    """Entries of one run in one folder."""

    def __init__(self, folder: Path, modules: Sequence[DdpModule], steps: Container[int] | None, is_kept: bool) -> None:
        self.folder = folder
        self.is_kept = is_kept
        """True if the next command can use it"""
        chosen = hashlib.blake2b(encode(tuple(modules)) + repr(steps).encode(), digest_size=4).hexdigest()
        self._kind = f"{code_version()}-{chosen}"

    def path(self, files: RankFiles) -> Path:
        """Return the path of the rank's entry, which may not exist yet."""
        name = f"rank-{files.rank}" if files.rank is not None else "trace"
        return self.folder / f"{name}.{self._kind}.zip"

    def written_ns(self, files: RankFiles) -> int | None:
        """Return when the rank's entry was written, ns since 1970; ``None`` if there is none."""
        try:
            return self.path(files).stat().st_mtime_ns
        except OSError:
            return None

    def holds(self, files: RankFiles) -> bool:
        """Return True if there is an entry for the current state of the rank's files."""
        try:
            about = read_about(self.path(files))
        except BadEntryError:
            return False
        return about.is_whole and about.files == stamps_of(files)

    def write(self, files: RankFiles, make: Callable[[Path], None]) -> None:
        """Replace the rank's entry by what `make` writes to a temporary file. Raises `DdpprofError`."""
        try:
            with own_files.whole_file(self.path(files)) as part:
                make(part)
        except OSError as error:
            why = error.strerror or error
            raise DdpprofError(
                f"cannot write {self.folder}: {why}. Free some space, or try --no-cache, which writes to $TMPDIR"
            ) from error

    def tidy(self) -> None:
        """Delete entries of other code versions, and unfinished entries of dead processes."""
        own_files.remove_left_parts(self.folder)
        with suppress(OSError):
            for path in self.folder.glob("*.zip"):
                if f".{code_version()}-" not in path.name:
                    own_files.remove_file(path)


@contextmanager
def cache_of(
    path: Location, modules: Sequence[DdpModule], steps: Container[int] | None, *, keep: bool
) -> Iterator[Cache]:
    """Open the cache of a path. Without `keep`, open an empty temporary one that is removed at the end."""
    folder = _folder_of(path) if keep else None
    if folder is not None:
        yield Cache(folder, modules, steps, is_kept=True)
        return
    with scratch_folder() as scratch:
        yield Cache(scratch, modules, steps, is_kept=False)


def _folder_of(path: Location) -> Path | None:
    """Return the folder for a path's entries, and mark it as used now; ``None`` if it cannot be written."""
    users = user_folder()
    if users is None:
        return None
    try:
        name = spelled(path if isinstance(path, RemotePath) else path.absolute())
        folder = users / _FOLDER / hashlib.blake2b(os.fsencode(name), digest_size=12).hexdigest()
        own_files.make_private_folder(folder.parent)
        own_files.make_private_folder(folder)
        os.utime(folder)
        if not is_of_this_user(folder.stat()) or not os.access(folder, os.W_OK):
            return None
        for other in folder.parent.iterdir():
            if other.stat().st_mtime < time.time() - _UNUSED_S:
                own_files.remove_folder(other)
    except OSError:
        return None
    return folder


@cache
def code_version() -> str:
    """Return a digest of all code that an entry depends on, because a checkout changes between releases."""
    digest = hashlib.blake2b("\n".join((__version__, *versions())).encode(), digest_size=6)
    root = Path(__file__).parents[1]
    for part in _DEPENDS_ON:
        for file in sorted((root / part).rglob("*.py")) if (root / part).is_dir() else [root / part]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


_DEPENDS_ON = (
    "intervals.py", "words.py", "engine", "load", "model", "pipeline", "report", "statistics", "topics",
)  # fmt: skip
