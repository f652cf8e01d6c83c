"""A table made from the declarations of numbers in its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddpprof.engine.numbers import Declared, declared_in
from ddpprof.layout import ABSENT, Column, Table, clean, megabytes, ms, notes

_UNITS = {"_ns": (" ms", ms), "_bytes": (" MB", megabytes)}
"""suffix of a column's name → suffix of its heading, and how to format its values"""


def number_table(title: str, rows: Sequence[Any]) -> Table:
    """Return a table with a row for each of `rows`, all of one dataclass, and a column for each number.

    Times are shown in ms and sizes in MB. The meanings of the columns follow below the table.
    """
    kind: type = type(rows[0]) if rows else type(None)
    declared = declared_in(kind) if rows else ()
    headings = [_heading(one) for one in declared]
    columns = [Column(name, is_number=one.kind is not str) for name, one in zip(headings, declared, strict=True)]
    cells = tuple(tuple(_cell(one, one.value(row)) for one in declared) for row in rows)
    meanings = [f"{name}: {one.meaning}" for name, one in zip(headings, declared, strict=True)]
    return Table(title, tuple(columns), cells, notes(*meanings))


def _unit_of(one: Declared) -> str | None:
    return next((unit for unit in _UNITS if one.column.endswith(unit)), None)


def _heading(one: Declared) -> str:
    unit = _unit_of(one)
    if unit is None:
        return one.column.removeprefix("num_").replace("_", " ")
    return one.column.removesuffix(unit).replace("_", " ") + _UNITS[unit][0]


def _cell(one: Declared, value: Any) -> str:
    if value is None:
        return ABSENT
    unit = _unit_of(one)
    if unit is not None:
        return _UNITS[unit][1](value)
    return f"{value:.2f}" if one.kind is float else clean(str(value))
