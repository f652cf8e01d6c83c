"""Declarations of numbers on dataclass fields. Columns, metrics and clocks are derived from these declarations.

    @dataclass(frozen=True, slots=True)
    class Overlap:
        exposed_ns: Annotated[int, Number("communication without concurrent computation", metric="exposed")]

Every number of a row becomes a column of its Arrow table. Numbers with a metric are compared between runs and shown in
TensorBoard. For fields with a clock, the JSON report says whether they are times of the host or of the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints


class Clock(StrEnum):
    """The clock on which a time was measured.

    On an accelerator, the device runs work after the host has launched it.
    """

    HOST = "host"
    DEVICE = "device"


HOST, DEVICE = Clock.HOST, Clock.DEVICE


@dataclass(frozen=True, slots=True)
class Number:
    """Declares a field that contains a number, a name or a flag."""

    meaning: str
    clock: Clock | None = None
    metric: str = ""
    """name of the number in comparisons of runs; empty if runs are not compared by this number"""
    column: str = ""
    """column name, if it differs from the field name"""


@dataclass(frozen=True, slots=True)
class Part:
    """Declares a field that contains another dataclass. Its numbers are included in the enclosing dataclass."""

    prefix: str = ""
    """prefix of the column names of the included numbers"""
    of: str = ""
    """text appended to the meanings of the included numbers, such as ``"in the whole trace"``"""
    clock: Clock | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared number, with the path from a row to it, and the name of its column."""

    number: Number
    path: tuple[str, ...]
    kind: type
    """type of the number: int, float, str or bool; the value may also be ``None`` if unknown"""
    column: str
    meaning: str

    def value(self, row: Any) -> Any:
        """Return the number in a row, or ``None`` if a dataclass on the path to it is ``None``."""
        for name in self.path:
            if row is None:
                return None
            row = getattr(row, name)
        return row


@cache
def declared_in(row: type) -> tuple[Declared, ...]:
    """Return the declared numbers of a dataclass, including its parts, in order."""
    return tuple(_declared(row, (), Part()))


def _declared(row: type, path: tuple[str, ...], part: Part) -> Iterator[Declared]:
    for name, hint, marks in _fields(row):
        for mark in marks:
            if isinstance(mark, Number):
                meaning = f"{mark.meaning} {part.of}".rstrip()
                yield Declared(mark, (*path, name), hint, part.prefix + (mark.column or name), meaning)
            elif isinstance(mark, Part):
                yield from _declared(hint, (*path, name), mark)


def metrics_of(row: type) -> dict[str, Declared]:
    """Return the numbers that are compared between runs, by metric name."""
    return {one.number.metric: one for one in declared_in(row) if one.number.metric}


@cache
def clocks_of(row: type) -> dict[str, Clock]:
    """Return the clock of each field, at any depth, by path: ``{"ranks[].steps[].compute_ns": DEVICE, …}``."""
    return dict(_clocks(row, ""))


def _clocks(row: type, before: str) -> Iterator[tuple[str, Clock]]:
    for name, hint, marks in _fields(row):
        clock = next((found for mark in marks if (found := _clock_of(mark)) is not None), None)
        is_many = _is_tuple(get_type_hints(row, include_extras=True)[name])
        path = f"{before}{name}{'[]' if is_many else ''}"
        if clock is not None:
            yield path.removesuffix("[]"), clock
        elif is_dataclass(hint):
            yield from _clocks(hint, f"{path}.")


def _clock_of(mark: object) -> Clock | None:
    return mark if isinstance(mark, Clock) else mark.clock if isinstance(mark, Number | Part) else None


def _fields(row: type) -> Iterator[tuple[str, type, tuple[object, ...]]]:
    """Yield the name, type and annotations of each field.

    ``None`` is removed from the type. For a tuple, the type is that of its items.
    """
    for name, hint in get_type_hints(row, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        yield name, _bare(hint), marks


def _bare(hint: Any) -> Any:
    """Return the type without annotations, ``None`` or an enclosing tuple."""
    if hasattr(hint, "__metadata__"):
        return _bare(hint.__origin__)
    if _is_tuple(hint):
        return _bare(get_args(hint)[0])
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return _bare(kinds[0]) if NoneType in get_args(hint) and len(kinds) == 1 else hint


def _is_tuple(hint: Any) -> bool:
    if hasattr(hint, "__metadata__"):
        return _is_tuple(hint.__origin__)
    return (get_origin(hint) is tuple and bool(get_args(hint))) or any(
        get_origin(kind) is tuple for kind in get_args(hint) if NoneType in get_args(hint)
    )
