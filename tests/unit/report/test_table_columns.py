"""Columns are declared once: with a unit in the name, and a description."""

from __future__ import annotations

import pytest

from ddpprof.engine.numbers import Declared
from ddpprof.engine.topic import TableSchema
from ddpprof.report.topics import TABLES, UNITS, schema_as_markdown

ALL = [pytest.param(column, id=f"{table.name}.{column.column}") for table in TABLES for column in table.columns]
NUMBERED = {"rank", "step", "module", "bucket", "number", "position", "late_rank"}
"""integers that name a thing"""


@pytest.mark.parametrize("column", ALL)
def test_a_number_says_its_unit(column: Declared) -> None:
    is_number = column.kind in (int, float)
    has_unit = column.column.endswith(UNITS) or column.column.startswith("num_")
    assert has_unit == (is_number and column.column not in NUMBERED)
    assert column.column.startswith("is_") == (column.kind is bool)


@pytest.mark.parametrize("column", ALL)
def test_a_column_is_described_in_one_line(column: Declared) -> None:
    assert 3 < len(column.meaning) < 120
    assert not set(column.meaning) & set("\n|")
    assert not column.meaning.endswith(".")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_names_of_a_table_are_unique(table: TableSchema) -> None:
    names = [column.column for column in table.columns]
    assert len(names) == len(set(names))


def test_the_documentation_has_every_table_and_column() -> None:
    text = schema_as_markdown(TABLES)
    assert text.startswith("## steps\n\nOne row per rank and profiled step.")
    assert "| `exposed_ns` | int64 | time with communication but no computation |" in text
    assert text.count("\n| `") == len(ALL)
