"""Cache entries of ranks. An entry can be created by any process on any machine that can read the rank's files.

An entry is a zip file, so that single steps can be read:

    about       the files from which the entry was created
    summary     `RunSummary` of this rank
    drawing     `DrawnRank`; missing for a rank without a trace
    step-N      `StepTimeline` of the step with index N

The members are encoded by `report/topics.py`.

Entries are stored in the user's cache folder or, with ``--no-cache``, in a temporary folder. An entry is valid as long
as the rank's files have the same size and modification time. The name of an entry depends on the version of the code,
the DDP modules and the selected steps.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from ddpprof import own_files
from ddpprof.engine.topic import versions
from ddpprof.errors import DdpprofError
from ddpprof.files import Location, RemotePath, identity, spelled
from ddpprof.load.file_bytes import DEFAULT_LIMITS, Limits, telling
from ddpprof.load.rank import LoadedRank, RankFiles, load_rank, some_file
from ddpprof.model import NO_STEP, Collectives, DdpModule, HostSpans, Rank, StepMode, Trace, Work
from ddpprof.model.tables import rows_of
from ddpprof.own_files import is_of_this_user, scratch_folder, user_folder
from ddpprof.report.topics import RunSummary, decode, encode, summarize_rank
from ddpprof.rundir import facts_file, last_step_file, steps_file
from ddpprof.topics.steps.timeline import Drawing, DrawnRank, StepTimeline, drawing_of
from ddpprof.version import __version__
from ddpprof.words import utf8_text


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """How much has been read so far."""

    path: Location
    """a file that is being read at the moment; there may be several"""
    num_done: int
    num_ranks: int
    done_bytes: int
    all_bytes: int
    """total size of the files in bytes; 0 if unknown"""


Watch = Callable[[ReadProgress], None]


class Progress:
    """Tracks the progress of reading all ranks. Ranks are identified by index."""

    def __init__(self, watch: Watch, ranks: Sequence[RankFiles], sizes: Sequence[int]) -> None:
        self._watch, self._ranks, self._sizes = watch, ranks, sizes
        self._read: dict[int, int] = {}
        """for each rank that is being read or has been read: number of bytes read so far"""
        self._num_done = 0
        self._path: Location = some_file(ranks[0]) if ranks else Path()

    def begin(self, index: int) -> None:
        self._path = some_file(self._ranks[index])
        self.read(index, 0)

    def read(self, index: int, num_bytes: int) -> None:
        """Set the number of bytes of the rank's files that have been read so far."""
        self._read[index] = min(num_bytes, self._sizes[index])
        self._tell()

    def end(self, index: int) -> None:
        self._num_done += 1
        self.read(index, self._sizes[index])

    def _tell(self) -> None:
        self._watch(
            ReadProgress(self._path, self._num_done, len(self._ranks), sum(self._read.values()), sum(self._sizes))
        )


class FileBytes:
    """Adds up the bytes read from successive files, and calls `told` with the sum."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self._before = self._last = 0

    def __call__(self, num_bytes: int) -> None:
        if num_bytes < self._last:
            self._before += self._last
        self._last = num_bytes
        self._told(self._before + num_bytes)


def num_bytes(files: RankFiles) -> int:
    """Return the total size of the rank's traces in bytes, or 0 if unknown."""
    total = 0
    for path in files.traces:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


_T = TypeVar("_T")
_ALWAYS = (1980, 1, 1, 0, 0, 0)
"""timestamp of every member of an entry's archive; it is constant, so that equal entries consist of equal bytes"""


@dataclass(frozen=True, slots=True)
class RankTask:
    files: RankFiles
    modules: tuple[DdpModule, ...]
    """DDP modules of the job, which are the same on all ranks"""
    steps: Container[int] | None = None
    """numbers of the steps to measure; ``None`` for all"""
    limits: Limits = DEFAULT_LIMITS


def run_task(task: RankTask, out: BinaryIO, num_processes: int = 1) -> None:
    """Read a rank and write its entry. `num_processes`: maximum number of processes that decode its traces.

    Raises `BadTrace` if the user gave a single trace and it cannot be read.
    """
    stamps = stamps_of(task.files)  # before reading, so that later writes make the entry invalid
    loaded = load_rank(task.files, task.limits, num_processes)
    steps = _step_numbers(loaded.rank) if loaded.rank is not None else ()
    if loaded.rank is not None and task.steps is not None:
        loaded = replace(loaded, rank=only_steps(loaded.rank, task.steps))
    drawing = drawing_of(loaded.rank) if loaded.rank is not None else None
    write_entry(out, About(stamps, loaded.is_whole, steps), _summary(loaded, task), drawing)


def _step_numbers(rank: Rank) -> tuple[int, ...]:
    traced = {step.number for step in rank.trace.steps} if rank.trace is not None else set()
    return tuple(sorted(traced | {step.number for step in rank.training_steps if step.mode is StepMode.LIGHT}))


def _summary(loaded: LoadedRank, task: RankTask) -> RunSummary:
    number = loaded.rank.rank if loaded.rank is not None else task.files.rank or 0
    missing = {number: tuple(map(utf8_text, loaded.missing))}
    if loaded.rank is None:
        return RunSummary(missing=missing)
    return replace(summarize_rank(loaded.rank, task.modules), missing=missing)


@dataclass(frozen=True, slots=True)
class About:
    files: Mapping[str, str]
    """file name → size and modification time or, for a remote file, the version that its server reports"""
    is_whole: bool
    """``False`` if a file could not be read; the next command must then try again"""
    steps: tuple[int, ...] = ()
    """numbers of all steps of the rank, including steps that were not measured"""


class BadEntryError(DdpprofError):
    """The entry does not exist or is damaged."""


def write_entry(out: BinaryIO, about: About, summary: RunSummary, drawing: Drawing | None) -> None:
    with zipfile.ZipFile(out, "w") as file:
        _add(file, "about", encode(about))
        _add(file, "summary", encode(summary))
        if drawing is not None:
            _add(file, "drawing", encode(drawing.about))
            for index in drawing.about.measured:
                _add(file, f"step-{index}", encode(drawing.draw(index)))


def _add(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    file.writestr(zipfile.ZipInfo(name, _ALWAYS), content)


def read_about(path: Path) -> About:
    """Return the description of the files from which the entry was created. Raises `BadEntryError`."""
    return _read(path, "about", About)


def read_summary(source: Path | BinaryIO) -> RunSummary:
    """Return the summary of the rank. Raises `BadEntryError`."""
    return _read(source, "summary", RunSummary)


def read_drawing(path: Path) -> Drawing | None:
    """Return the drawing, which reads steps when needed; ``None`` if the rank has no trace. Raises `BadEntryError`."""
    with _opened(path) as file:
        if "drawing" not in file.namelist():
            return None
    about = _read(path, "drawing", DrawnRank)
    return Drawing(about, lambda index: _read(path, f"step-{index}", StepTimeline))


def _read(source: Path | BinaryIO, name: str, kind: type[_T]) -> _T:
    with _opened(source) as file:
        return decode(file.read(name), kind)


@contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(source) as file:
            yield file
    except (OSError, zipfile.BadZipFile, KeyError, zlib.error, msgspec.MsgspecError, ValueError) as error:
        raise BadEntryError(f"{source} cannot be read ({error}). Delete this file, or try --no-cache.") from error


def stamps_of(files: RankFiles) -> dict[str, str]:
    """Return a stamp (`identity`) of each existing file of the rank, by file name."""
    recorded = (
        []
        if files.directory is None or files.rank is None
        else [files.directory / name(files.rank) for name in (facts_file, steps_file, last_step_file)]
    )
    found = {}
    for path in (*files.traces, *recorded):
        if (stamp := identity(path)) is not None:
            found[os.fsencode(path.name).decode("utf-8", "backslashreplace")] = stamp  # names may not be UTF-8
    return found


_Table = TypeVar("_Table", Work, Collectives, HostSpans)


def only_steps(rank: Rank, steps: Container[int]) -> Rank:
    """Return the rank with only these steps in its trace and record. Work outside steps is dropped as well."""
    record = rank.record
    if record is not None:
        record = structs.replace(record, steps=tuple(step for step in record.steps if step.number in steps))
    return replace(rank, trace=_only(rank.trace, steps) if rank.trace is not None else None, record=record)


def _only(trace: Trace, steps: Container[int]) -> Trace:
    kept = [index for index, step in enumerate(trace.steps) if step.number in steps]
    becomes = np.full(len(trace.steps) + 1, NO_STEP, np.int32)  # NO_STEP (-1) indexes the last entry
    becomes[kept] = np.arange(len(kept))

    def chosen(table: _Table) -> _Table:
        step = becomes[table.step]
        kept = step != NO_STEP
        return replace(rows_of(table, kept), step=step[kept])

    return replace(
        trace,
        steps=tuple(trace.steps[index] for index in kept),
        compute=chosen(trace.compute),
        copies=chosen(trace.copies),
        collectives=chosen(trace.collectives),
        host_spans=chosen(trace.host_spans),
    )


_FOLDER = "summaries"
_UNUSED_S = 30 * 24 * 3600
"""the folder with the entries of a run is removed if no command has used it for this many seconds"""


class Cache:
    """The entries of one run, in one folder."""

    def __init__(self, folder: Path, modules: Sequence[DdpModule], steps: Container[int] | None, is_kept: bool) -> None:
        self.folder = folder
        self.is_kept = is_kept
        """whether the entries are kept for later commands"""
        chosen = hashlib.blake2b(encode(tuple(modules)) + repr(steps).encode(), digest_size=4).hexdigest()
        self._kind = f"{code_version()}-{chosen}"

    def path(self, files: RankFiles) -> Path:
        """Return the path of the rank's entry. The entry may not exist yet."""
        name = f"rank-{files.rank}" if files.rank is not None else "trace"
        return self.folder / f"{name}.{self._kind}.zip"

    def written_ns(self, files: RankFiles) -> int | None:
        """Return the time at which the rank's entry was written (ns since 1970), or ``None`` if there is none."""
        try:
            return self.path(files).stat().st_mtime_ns
        except OSError:
            return None

    def holds(self, files: RankFiles) -> bool:
        """Return True if there is a valid entry for the rank."""
        try:
            about = read_about(self.path(files))
        except BadEntryError:
            return False
        return about.is_whole and about.files == stamps_of(files)

    def write(self, files: RankFiles, make: Callable[[Path], None]) -> None:
        """Write the rank's entry. `make`: writes the entry to the given temporary file. Raises `DdpprofError`."""
        try:
            with own_files.whole_file(self.path(files)) as part:
                make(part)
        except OSError as error:
            why = error.strerror or error
            raise DdpprofError(
                f"cannot write {self.folder}: {why}. Free some space, or try --no-cache, which writes to $TMPDIR"
            ) from error

    def tidy(self) -> None:
        """Delete entries of other versions of the code, and incomplete entries of ended processes."""
        own_files.remove_left_parts(self.folder)
        with suppress(OSError):
            for path in self.folder.glob("*.zip"):
                if f".{code_version()}-" not in path.name:
                    own_files.remove_file(path)


@contextmanager
def cache_of(
    path: Location, modules: Sequence[DdpModule], steps: Container[int] | None, *, keep: bool
) -> Iterator[Cache]:
    """Open the cache for a path. Without `keep`, open an empty temporary cache that is removed at the end."""
    folder = _folder_of(path) if keep else None
    if folder is not None:
        yield Cache(folder, modules, steps, is_kept=True)
        return
    with scratch_folder() as scratch:
        yield Cache(scratch, modules, steps, is_kept=False)


def _folder_of(path: Location) -> Path | None:
    """Return the folder for the entries of a path, or ``None`` if it is not writable. Mark the folder as used."""
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
    """Return a digest of all code on which entries depend. In a source checkout, the version number is not enough."""
    digest = hashlib.blake2b("\n".join((__version__, *versions())).encode(), digest_size=6)
    root = Path(__file__).parents[1]
    for part in _DEPENDS_ON:
        for file in sorted((root / part).rglob("*.py")) if (root / part).is_dir() else [root / part]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


_DEPENDS_ON = (
    "intervals.py", "words.py", "engine", "load", "model", "pipeline", "report", "statistics", "topics",
)  # fmt: skip


_NO_MEMORY = "not enough memory. Try again with --jobs 1, or on a machine with more memory"


def read_here(tasks: Sequence[RankTask], cache: Cache, num_processes: int, progress: Progress) -> dict[int, str]:
    """Write an entry for each rank, in this process. Return the errors of failed tasks, by index."""
    failed = {}
    for index, task in enumerate(tasks):
        progress.begin(index)
        try:
            make_entry(task, cache, partial(progress.read, index), num_processes)
        except MemoryError:
            failed[index] = _NO_MEMORY
        progress.end(index)
    return failed


def make_entry(task: RankTask, cache: Cache, told: Callable[[int], None], num_processes: int) -> None:
    """Write the entry of one rank. Raises `DdpprofError`.

    `told`: called with the number of bytes read so far. `num_processes`: maximum number of processes to use.
    """

    def make(part: Path) -> None:
        with part.open("wb") as out, telling(FileBytes(told)):
            run_task(task, out, num_processes)

    cache.write(task.files, make)
