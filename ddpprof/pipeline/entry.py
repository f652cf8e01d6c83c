"""An entry: what is kept of one rank. A zip file, so that a single step can be read of many.

about       which files it was made of
summary     `RunSummary` of the rank alone
drawing     `DrawnRank`; absent without a trace
step-N      `StepTimeline` of the step with that index
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from ddpprof.errors import DdpprofError
from ddpprof.measures.step.timeline import StepTimeline
from ddpprof.pipeline.codec import decode, encode
from ddpprof.report.rank_summary import RunSummary
from ddpprof.report.timeline import Drawing, DrawnRank

_T = TypeVar("_T")
_ALWAYS = (1980, 1, 1, 0, 0, 0)
"""the time of every member: equal entries are equal bytes"""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file as it was when it was read."""

    stamp: str
    """of a local file size and time of last change, of a remote one what its server says; another: look again"""
    content: str | None
    """size and checksum; ``None``: remote, the stamp must do"""


@dataclass(frozen=True, slots=True)
class About:
    files: Mapping[str, SeenFile]
    """by name"""
    is_whole: bool
    """``False``: some file could not be read, which may be better next time"""
    steps: tuple[int, ...] = ()
    """numbers of all that the rank has, also of those that nobody wanted to measure"""


class BadEntryError(DdpprofError):
    """No entry, or a damaged one."""


def write_entry(out: BinaryIO, about: About, summary: RunSummary, drawing: Drawing | None) -> None:
    with zipfile.ZipFile(out, "w") as file:
        _add(file, "about", encode(about))
        _add(file, "summary", encode(summary))
        if drawing is not None:
            _add(file, "drawing", encode(drawing.about))
            for index in drawing.about.measured:
                _add(file, f"step-{index}", encode(drawing.draw(index)))


def copy_entry(source: Path, out: BinaryIO, about: About) -> None:
    """The same, of files with other stamps. Raises `BadEntryError`."""
    with _opened(source) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            _add(new, name, encode(about) if name == "about" else old.read(name))


def _add(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    file.writestr(zipfile.ZipInfo(name, _ALWAYS), content)


def read_about(path: Path) -> About:
    """Raises `BadEntryError`."""
    return _read(path, "about", About)


def read_summary(source: Path | BinaryIO) -> RunSummary:
    """Raises `BadEntryError`."""
    return _read(source, "summary", RunSummary)


def read_drawing(path: Path) -> Drawing | None:
    """``None`` where the rank has no trace. Its steps are read when they are drawn. Raises `BadEntryError`."""
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
