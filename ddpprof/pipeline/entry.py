"""An entry: what is kept of one rank. It is a zip file, so that single steps can be read.

about       the files it was made from
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
"""time stamp of every member, so that equal entries are equal bytes"""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file at the time when it was read."""

    stamp: str
    """size and modification time of a local file, or what a remote one's server says; if it changes, look again"""
    content: str | None
    """size and checksum; ``None`` for a remote file, for which the stamp must do"""


@dataclass(frozen=True, slots=True)
class About:
    files: Mapping[str, SeenFile]
    """files by name"""
    is_whole: bool
    """``False`` if some file could not be read, which may work next time"""
    steps: tuple[int, ...] = ()
    """numbers of all steps that the rank has, including those that were not measured"""


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


def copy_entry(source: Path, out: BinaryIO, about: About) -> None:
    """Copy an entry for files with other stamps. Raises `BadEntryError`."""
    with _opened(source) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            _add(new, name, encode(about) if name == "about" else old.read(name))


def _add(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    file.writestr(zipfile.ZipInfo(name, _ALWAYS), content)


def read_about(path: Path) -> About:
    """Read what the entry was made from. Raises `BadEntryError`."""
    return _read(path, "about", About)


def read_summary(source: Path | BinaryIO) -> RunSummary:
    """Read the rank's summary. Raises `BadEntryError`."""
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
