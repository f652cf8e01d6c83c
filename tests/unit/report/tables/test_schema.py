"""Columns are declared once: with a unit in the name, and a description."""

from __future__ import annotations

from typing import Any

import pytest

from ddpprof.report.tables import TABLES, schema_as_markdown
from ddpprof.report.tables.schema import UNITS, ArrowType, TableColumn, TableSchema

ALL = [pytest.param(column, id=f"{table.name}.{column.name}") for table in TABLES for column in table.columns]
NUMBERED = {"rank", "step", "module", "bucket", "number", "position", "late_rank"}
"""integers that name a thing"""


@pytest.mark.parametrize("column", ALL)
def test_a_number_says_its_unit(column: TableColumn[Any]) -> None:
    is_number = column.kind in (ArrowType.INTEGER, ArrowType.FLOAT)
    has_unit = column.name.endswith(UNITS) or column.name.startswith("num_")
    assert has_unit == (is_number and column.name not in NUMBERED)
    assert column.name.startswith("is_") == (column.kind is ArrowType.BOOL)


@pytest.mark.parametrize("column", ALL)
def test_a_column_is_described_in_one_line(column: TableColumn[Any]) -> None:
    assert 3 < len(column.description) < 120
    assert not set(column.description) & set("\n|")
    assert not column.description.endswith(".")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_names_of_a_table_are_unique(table: TableSchema[Any]) -> None:
    names = [column.name for column in table.columns]
    assert len(names) == len(set(names))


def test_the_documentation_has_every_table_and_column() -> None:
    text = schema_as_markdown(TABLES)
    assert text.startswith("## steps\n\nOne row per rank and profiled step.")
    assert "| `exposed_ns` | int64 | time with communication but no computation |" in text
    assert text.count("\n| `") == len(ALL)
