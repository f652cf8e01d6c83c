"""Storage of entries: in the run directory, in the user's cache folder, or only for one command.

An entry only counts if this user wrote it; one that came with a run, or was changed, is made again. Entries are
invalidated by size and modification time of their files, and then by checksum, so they survive a copy or a checkout.
Entries for other code, modules or steps have other names.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import ddpprof
from ddpprof import own_files
from ddpprof.errors import DdpprofError
from ddpprof.files import Location, RemotePath, spelled
from ddpprof.load.rank import RankFiles
from ddpprof.model import DdpModule
from ddpprof.pipeline.entry import (
    About,
    BadEntryError,
    content_of,
    copy_entry,
    encode,
    paths_of,
    read_about,
    seen_files,
)
from ddpprof.report.side_streets import SIDE_STREETS
from ddpprof.rundir import (
    CACHE_DIRECTORY,
    CACHE_IGNORE_ALL,
    CACHE_IGNORED_BY_GIT,
    is_cached,
)
from ddpprof.scratch import scratch_folder
from ddpprof.user_key import SEAL_BYTES, is_of_this_user, is_sealed_file, seal_file, user_folder, user_key

_UNUSED_S = 30 * 24 * 3600
"""seconds after which unused folders of the user's cache are removed"""

_LARGEST_ENTRY_BYTES = 4 << 30


class Cache:
    """Entries of one run in one folder."""

    def __init__(
        self, folder: Path, modules: Sequence[DdpModule], steps: Container[int] | None, key: bytes, *, is_kept: bool
    ) -> None:
        """Open a cache. `key`: the key that seals its entries."""
        self.folder = folder
        self._key = key
        self.is_kept = is_kept
        """True if the next command can use it"""
        chosen = hashlib.blake2b(encode(tuple(modules)) + repr(steps).encode(), digest_size=4).hexdigest()
        self._kind = f"{code_version()}-{chosen}"

    def path(self, files: RankFiles) -> Path:
        """Return the path of the rank's entry, which may not exist yet."""
        name = f"rank-{files.rank}" if files.rank is not None else "trace"
        return self.folder / f"{name}.{self._kind}.zip"

    def written_ns(self, files: RankFiles) -> int | None:
        """Return when the rank's entry was written; ``None`` if there is none."""
        try:
            return self.path(files).stat().st_mtime_ns
        except OSError:
            return None

    def holds(self, files: RankFiles) -> bool:
        """Return whether there is an entry for the rank's files as they are now."""
        path = self.path(files)
        if not is_sealed_file(path, self._key, _LARGEST_ENTRY_BYTES):
            return False
        try:
            about = read_about(path)
        except BadEntryError:
            return False
        now = seen_files(files, with_content=False)
        if not about.is_whole or now.keys() != about.files.keys():
            return False
        paths = paths_of(files)
        moved = [name for name, seen in now.items() if seen.stamp != about.files[name].stamp]
        if not all(_has_content(paths[name], about.files[name].content) for name in moved):
            return False
        if moved:
            kept = {name: replace(seen, stamp=now[name].stamp) for name, seen in about.files.items()}
            self._keep_stamps(files, replace(about, files=kept))
        return True

    def _keep_stamps(self, files: RankFiles, about: About) -> None:
        """Update the stamps, so that the next command need not compare the content again."""

        def make(part: Path) -> None:
            with part.open("wb") as out:
                copy_entry(self.path(files), out, about)

        with suppress(DdpprofError):
            self.write(files, make)

    def write(self, files: RankFiles, make: Callable[[Path], None]) -> None:
        """Replace the rank's entry by what `make` writes to a temporary file. Raises `DdpprofError`."""
        try:
            if own_files.is_folder(path := self.path(files)):
                own_files.remove_folder(path)  # not ours, since no folder of ours has the name of an entry
            with own_files.whole_file(path) as part:
                make(part)
                seal_file(part, self._key)
        except OSError as error:
            why = error.strerror or error
            raise DdpprofError(
                f"cannot write {self.folder}: {why}. Make room, or try --no-cache, which writes to $TMPDIR"
            ) from error

    def tidy(self) -> None:
        """Delete entries of other code, and unfinished ones of dead processes."""
        own_files.remove_left_parts(self.folder)
        with suppress(OSError):
            for path in [path for path in self.folder.iterdir() if is_cached(path.name)]:
                if own_files.name_of_part(path.name) is None and f".{code_version()}-" not in path.name:
                    own_files.remove_file(path)


@contextmanager
def cache_of(
    path: Location,
    ranks: Sequence[RankFiles],
    modules: Sequence[DdpModule],
    steps: Container[int] | None,
    *,
    keep: bool,
) -> Iterator[Cache]:
    """Open the run's cache. Without `keep`, open a temporary one that is empty and removed at the end."""
    recorded_in = ranks[0].directory if ranks else None
    key = user_key() if keep and ranks else None
    folder = _folder(path, recorded_in) if key is not None else None
    if key is not None and folder is not None:
        yield Cache(folder, modules, steps, key, is_kept=True)
        return
    with scratch_folder() as scratch:
        yield Cache(scratch, modules, steps, os.urandom(SEAL_BYTES), is_kept=False)


def _folder(path: Location, recorded_in: Location | None) -> Path | None:
    """Return the folder for entries; ``None`` if none can be written."""
    candidates = [recorded_in / CACHE_DIRECTORY] if isinstance(recorded_in, Path) else []
    if (users := _users_folder()) is not None:
        candidates.append(users / hashlib.blake2b(os.fsencode(_absolute(path)), digest_size=12).hexdigest())
    for folder in candidates:
        try:
            own_files.make_folder(folder)
            if not is_of_this_user(folder.stat()):
                continue
            _mark_as_used(folder / CACHE_IGNORED_BY_GIT)
        except OSError:
            continue
        return folder
    return None


def _mark_as_used(mark: Path) -> None:
    """Mark a folder as used. Raises ``OSError`` if nothing can be written."""
    if not mark.is_symlink() and mark.is_file():
        os.utime(mark, follow_symlinks=False)
    else:
        own_files.write_whole(mark, CACHE_IGNORE_ALL.encode())


def _absolute(path: Location) -> str:
    return spelled(path if isinstance(path, RemotePath) else path.absolute())


def _users_folder() -> Path | None:
    """Return the user's cache folder, without long unused entries; ``None`` if there is no place for it."""
    folder = user_folder()
    if folder is not None:
        with suppress(OSError):
            for mark in folder.glob(f"*/{CACHE_IGNORED_BY_GIT}"):
                if mark.stat().st_mtime < time.time() - _UNUSED_S:
                    own_files.remove_folder(mark.parent)
    return folder


@cache
def code_version() -> str:
    """Return a digest of all code that an entry depends on, since a checkout changes between releases."""
    digest = hashlib.blake2b(ddpprof.__version__.encode(), digest_size=6)
    root = Path(ddpprof.__file__).parent
    for part in _DEPENDS_ON:
        for file in sorted((root / part).rglob("*.py")) if (root / part).is_dir() else [root / part]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


_DEPENDS_ON = (
    "intervals.py", "words.py", "load", "measures", "model", "pipeline", "report",
    *(street.folder for street in SIDE_STREETS),
)  # fmt: skip


def _has_content(path: Location, content: str | None) -> bool:
    return content is not None and isinstance(path, Path) and content_of(path) == content
