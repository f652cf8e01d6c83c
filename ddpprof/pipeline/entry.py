"""The map step: one rank's files → its entry. It runs in any process on any machine that can read the files.

An entry is a zip file, so that single steps can be read:

    about       the files it was made from
    summary     `RunSummary` of the rank alone
    drawing     `DrawnRank`; absent without a trace
    step-N      `StepTimeline` of the step with that index

Each member is compressed msgpack; equal objects give equal bytes. Columns of times increase slowly, so their
differences compress well. Only the same version of the code that wrote an entry reads it.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from array import array
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.errors import DdpprofError
from ddpprof.files import identity
from ddpprof.load.limits import DEFAULT_LIMITS, Limits
from ddpprof.load.rank import LoadedRank, RankFiles, load_rank
from ddpprof.load.step_selection import only_steps
from ddpprof.model import DdpModule, Rank, StepMode
from ddpprof.report.rank_summary import RunSummary, summarise_rank
from ddpprof.report.timeline import Drawing, DrawnRank, drawing_of
from ddpprof.rundir import facts_file, last_step_file, steps_file
from ddpprof.topics.steps.timeline import StepTimeline
from ddpprof.words import utf8_text

_T = TypeVar("_T")
_LEVEL = 1
"""compression level; higher ones take longer than reading the trace"""
_ALWAYS = (1980, 1, 1, 0, 0, 0)
"""time stamp of every member, so that equal entries have equal bytes"""


@dataclass(frozen=True, slots=True)
class RankTask:
    files: RankFiles
    modules: tuple[DdpModule, ...]
    """modules of the job"""
    steps: Container[int] | None = None
    """numbers of the steps to measure; ``None`` for all"""
    limits: Limits = DEFAULT_LIMITS


def run_task(task: RankTask, out: BinaryIO, num_processes: int = 1) -> None:
    """Read a rank and write its entry. `num_processes`: number of processes that may decode its traces.

    Raises `BadTrace` if the rank is a single unreadable trace that the user named.
    """
    stamps = stamps_of(task.files)  # taken before reading: later writes must not count as known
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
    return replace(summarise_rank(loaded.rank, task.modules), missing=missing)


@dataclass(frozen=True, slots=True)
class About:
    files: Mapping[str, str]
    """file name → its size and modification time; for a remote file, the version given by its server"""
    is_whole: bool
    """``False`` if a file could not be read, which may work next time"""
    steps: tuple[int, ...] = ()
    """numbers of all steps of the rank, including those that were not measured"""


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
    """Return a description of what the entry was made from. Raises `BadEntryError`."""
    return _read(path, "about", About)


def read_summary(source: Path | BinaryIO) -> RunSummary:
    """Return the rank's summary. Raises `BadEntryError`."""
    return _read(source, "summary", RunSummary)


def read_drawing(path: Path) -> Drawing | None:
    """Return the drawing, which reads steps on demand; ``None`` if there is no trace. Raises `BadEntryError`."""
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
        raise BadEntryError(f"{source} cannot be read ({error}). Delete it, or try --no-cache.") from error


def encode(value: object) -> bytes:
    return zlib.compress(_ENCODER.encode(value), _LEVEL)


def decode(content: bytes, kind: type[_T]) -> _T:
    """Decode a value. Raises ``zlib.error`` and ``msgspec.MsgspecError``."""
    return msgspec.msgpack.decode(zlib.decompress(content), type=kind, dec_hook=_decoded)


class _Column(msgspec.Struct, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    is_differences: bool
    content: bytes


def _encoded(value: Any) -> Any:
    if isinstance(value, array):
        return value.tobytes()
    if isinstance(value, np.ndarray):
        as_differences = value.dtype == np.int64 and value.ndim == 1
        content = np.diff(value, prepend=np.int64(0)) if as_differences else np.ascontiguousarray(value)
        return _Column(value.dtype.str, value.shape, as_differences, content.tobytes())
    raise NotImplementedError(type(value))


def _decoded(kind: Any, value: Any) -> Any:
    if kind is array:
        return array("d", value)
    assert get_origin(kind) is np.ndarray, kind
    column = msgspec.convert(value, _Column)
    values: NDArray[Any] = np.frombuffer(column.content, np.dtype(column.dtype)).reshape(column.shape)
    return np.cumsum(values, dtype=np.int64) if column.is_differences else values


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encoded)


def stamps_of(files: RankFiles) -> dict[str, str]:
    """Return the stamps of the existing files, by file name."""
    recorded = (
        []
        if files.directory is None or files.rank is None
        else [files.directory / name(files.rank) for name in (facts_file, steps_file, last_step_file)]
    )
    found = {}
    for path in (*files.traces, *recorded):
        if (stamp := identity(path)) is not None:
            found[os.fsencode(path.name).decode("utf-8", "backslashreplace")] = stamp  # a name need not be UTF-8
    return found
