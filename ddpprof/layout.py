"""The shapes that a section of a report may have, and the words for its units.

Times come as ns and leave as ms, sizes as bytes and leave as MB (10⁶ bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from ddpprof.measures.statistics.medians import mean_known, median_known

_T = TypeVar("_T")

ABSENT = "-"
MAX_RANKS = 16
"""rows of a table that has one for each rank"""


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    is_warning: bool = False
    is_aside: bool = False
    """of less weight; stands apart"""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    parts_ns: tuple[int, ...]

    @property
    def total_ns(self) -> int:
        return sum(self.parts_ns)


@dataclass(frozen=True, slots=True)
class Bars:
    title: str
    parts: tuple[str, ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """From the left edge of its picture."""

    start_ns: int
    end_ns: int
    what: str
    """a part of the picture's, or one character to draw"""


@dataclass(frozen=True, slots=True)
class Lane:
    label: str
    spans: tuple[LaneSpan, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """What went on when, from left to right."""

    title: str
    length_ns: int
    parts: tuple[str, ...]
    lanes: tuple[Lane, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class FindingText:
    number: int
    title: str
    gain: str
    evidence: str
    advice: str
    """empty where nothing is advised"""


@dataclass(frozen=True, slots=True)
class FindingList:
    title: str
    findings: tuple[FindingText, ...]
    otherwise: str


@dataclass(frozen=True, slots=True)
class Definition:
    term: str
    text: str
    more: tuple[tuple[str, str], ...]
    """what it is, and the words"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A file beside the report; a terminal shows where it is."""

    path: str
    what: str


Section = Line | Bars | Lanes | Table | FindingList | Definition | Picture


def ms(ns: float | None) -> str:
    return ABSENT if ns is None else f"{ns / 1e6:.2f}"


def megabytes(num_bytes: int | None) -> str:
    return ABSENT if num_bytes is None else f"{num_bytes / 1e6:.2f}"


def percent(fraction: float | None) -> str:
    return ABSENT if fraction is None else f"{fraction:.0%}"


def clean(text: str, most: int = 200) -> str:
    """Names come from traces: no control characters, and not endless."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def cut_off(number: int, most: int = MAX_RANKS, what: str = "ranks") -> str:
    """Said below a table that has only the first `most` rows."""
    return f"{number - most} more {what} are in the JSON report" if number > most else ""


def notes(*texts: str) -> str:
    return "; ".join(text for text in texts if text)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def mean_of(things: Iterable[_T], value: Callable[[_T], int | None]) -> int | None:
    return mean_known(map(value, things))


def median_of(things: Iterable[_T], value: Callable[[_T], int | None]) -> int | None:
    return median_known(map(value, things))
