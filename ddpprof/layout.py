"""Building blocks of the sections of a report, and formatting of numbers with units.

Times are passed in ns and shown in ms. Sizes are passed in bytes and shown in MB (10⁶ bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ddpprof.statistics import mean_known, median_known

_T = TypeVar("_T")

PARTS = ("forward", "backward", "exposed comm", "optimizer", "data, other", "idle")
"""parts of the step bar, in order"""
ABSENT = "-"
MAX_RANKS = 16
"""maximum number of rows in a table with one row per rank"""


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    is_warning: bool = False
    is_aside: bool = False
    """whether the text is shown as less important, for example dimmed"""
    is_headline: bool = False
    """whether the text is emphasized"""


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
    """A span in a timeline. Times are relative to the timeline's left edge."""

    start_ns: int
    end_ns: int
    what: str
    """name of a part of the timeline, or the character with which the span is drawn"""


@dataclass(frozen=True, slots=True)
class Lane:
    label: str
    spans: tuple[LaneSpan, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """A timeline: events from left to right, in one row per lane."""

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


def columns(*names: str, words: Collection[str] = ()) -> tuple[Column, ...]:
    """Return the columns. Columns named in `words` contain text; all other columns contain numbers."""
    return tuple(Column(name, is_number=name not in words) for name in names)


def table_of(
    title: str,
    things: Iterable[_T],
    cells: Mapping[str, Callable[[_T], str]],
    words: Collection[str] = (),
    note: str = "",
) -> Table:
    """Return a table with one row for each of `things`. `cells`: column name → function that returns the cell."""
    rows = tuple(tuple(cell(thing) for cell in cells.values()) for thing in things)
    return Table(title, columns(*cells, words=words), rows, note)


@dataclass(frozen=True, slots=True)
class FindingText:
    number: int
    title: str
    gain: str
    evidence: str
    advice: str
    """what to change; empty if there is no advice"""
    is_noise: bool = False


@dataclass(frozen=True, slots=True)
class FindingList:
    title: str
    findings: tuple[FindingText, ...]
    otherwise: str


@dataclass(frozen=True, slots=True)
class Remarks:
    """Further facts, one sentence each."""

    title: str
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands to copy."""

    title: str
    commands: tuple[tuple[str, str], ...]
    """description and command of each line"""


@dataclass(frozen=True, slots=True)
class Definition:
    term: str
    text: str
    more: tuple[tuple[str, str], ...]
    """label and text of each item below the definition"""


Section = Line | Bars | Lanes | Table | FindingList | Remarks | Commands | Definition


def ms(ns: float | None) -> str:
    return ABSENT if ns is None else f"{ns / 1e6:z.2f}"


def in_ms(ns: float | None) -> str:
    """Return milliseconds with their unit for a sentence: three significant digits, but at most two decimals."""
    if ns is None:
        return ABSENT
    value = ns / 1e6
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:z.{decimals}f} ms"


def range_in_ms(low_ns: float, high_ns: float) -> str:
    """Return a range of milliseconds in parentheses, without a unit. It follows a value that has a unit."""
    low, high = (in_ms(ns).removesuffix(" ms") for ns in (low_ns, high_ns))
    return f"({low}–{high})" if low_ns >= 0 else f"({low} to {high})"


def megabytes(num_bytes: int | None) -> str:
    return ABSENT if num_bytes is None else f"{num_bytes / 1e6:.2f}"


def gigabytes_per_s(bytes_per_s: float | None) -> str:
    return ABSENT if bytes_per_s is None else three_digits(bytes_per_s / 1e9)


def three_digits(value: float) -> str:
    """Format a number with three significant digits. Numbers from 1000 up keep all digits before the decimal point."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def optional(value: object) -> str:
    return ABSENT if value is None else str(value)


def percent(fraction: float | None) -> str:
    return ABSENT if fraction is None else f"{fraction:z.0%}"


def duration(ns: int) -> str:
    """Format a duration, for example as ``0.4 s``, ``12 s``, ``4 min 12 s`` or ``3 h 05 min``."""
    if ns < 10 * 10**9:
        return f"{max(ns, 0) / 1e9:.1f} s"
    minutes, seconds = divmod(round(ns / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def clean(text: str, most: int = 200) -> str:
    """Shorten a name from a trace, and replace its control characters."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def cut_off(number: int, most: int = MAX_RANKS, what: str = "ranks") -> str:
    """Return the note below a table that shows only the first `most` rows."""
    return f"{number - most} more {what} are in the JSON report" if number > most else ""


def notes(*texts: str) -> str:
    return "; ".join(text for text in texts if text)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def mean_of(things: Iterable[_T], value: Callable[[_T], int | None]) -> int | None:
    return mean_known(map(value, things))


def median_of(things: Iterable[_T], value: Callable[[_T], int | None]) -> int | None:
    return median_known(map(value, things))
