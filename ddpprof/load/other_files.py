"""The only list of other tools' files that are not traces. Each is read by a topic."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from math import isfinite

from ddpprof.errors import BadTrace
from ddpprof.files import Location
from ddpprof.model import OtherFile, TimesTable
from ddpprof.topics.horovod.timeline_file import HOROVOD_TIMELINE, is_horovod_timeline, load_horovod

_FILES: Sequence[tuple[str, Callable[[Location], bool], Callable[[Location], OtherFile]]] = (
    (HOROVOD_TIMELINE, is_horovod_timeline, load_horovod),
)
"""name, test of the file's beginning, and reader"""


def load_other_file(path: Location) -> OtherFile | None:
    """Load the file if it is one of these; otherwise return ``None``. Raises `BadTrace`."""
    return next((load(path) for _, is_one, load in _FILES if is_one(path)), None)


def why_alone(path: Location) -> str | None:
    """Return why the file cannot be read as one of several traces; ``None`` if it is none of these."""
    return next((f"{path} is a {what}; give it alone" for what, is_one, _ in _FILES if is_one(path)), None)


_LEAST, _MOST = 1e-12, 1e12
"""limits of sizes and of times in seconds: beyond them, fits and axes overflow"""


def load_times(path: Location) -> TimesTable:
    """Read a table of times. Raises `BadTrace`."""
    try:
        with path.open("rb") as binary, TextIOWrapper(binary, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path} cannot be read: {error}.") from error
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise BadTrace(f"{path} is not a table of times: it needs a header line, a column of sizes and one of seconds.")
    varied, *names = (name.strip() for name in lines[0][1])
    times: dict[str, dict[float, list[float]]] = {name: {} for name in names}
    for number, row in lines[1:]:
        if len(row) != 1 + len(names):
            raise BadTrace(f"{path} line {number} has {len(row)} columns, not {1 + len(names)}.")
        size = _number(path, number, row[0])
        for name, cell in zip(names, row[1:], strict=True):
            if cell.strip():
                times[name].setdefault(size, []).append(_number(path, number, cell) * 1e9)
    return TimesTable(varied, {name: {s: tuple(t) for s, t in of.items()} for name, of in times.items()})


def _number(path: Location, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not isfinite(value) or value <= 0:
        raise BadTrace(f"{path} line {line}: {text.strip()[:40]!r} is not a number above 0.")
    if not _LEAST <= value <= _MOST:
        raise BadTrace(f"{path} line {line}: {text.strip()[:40]!r} is not between {_LEAST:g} and {_MOST:g}.")
    return value
