"""Declarations of tables and their columns, from which tables, documentation and tests are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from ddpprof.report.tree import Report

RowT = TypeVar("RowT")

UNITS = ("_ns", "_bytes", "_bytes_per_s", "_ratio")
"""endings of the names of columns that have a unit; numbers of things begin with ``num_``"""


class ArrowType(StrEnum):
    """Type of a column, by Arrow's name. Every column may hold nulls, which mean that the run cannot tell."""

    INTEGER = "int64"
    FLOAT = "double"
    TEXT = "string"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[RowT]):
    name: str
    kind: ArrowType
    description: str
    value: Callable[[RowT], Any]


def integer(name: str, description: str, value: Callable[[RowT], Any]) -> TableColumn[RowT]:
    return TableColumn(name, ArrowType.INTEGER, description, value)


def real(name: str, description: str, value: Callable[[RowT], Any]) -> TableColumn[RowT]:
    return TableColumn(name, ArrowType.FLOAT, description, value)


def text(name: str, description: str, value: Callable[[RowT], Any]) -> TableColumn[RowT]:
    return TableColumn(name, ArrowType.TEXT, description, value)


def flag(name: str, description: str, value: Callable[[RowT], Any]) -> TableColumn[RowT]:
    return TableColumn(name, ArrowType.BOOL, description, value)


@dataclass(frozen=True, slots=True)
class TableSchema(Generic[RowT]):
    name: str
    """name of the attribute of `Tables`, and of the Parquet file"""
    description: str
    rows: Callable[[Report], Iterable[RowT]]
    columns: tuple[TableColumn[RowT], ...]


def schema_as_markdown(tables: Iterable[TableSchema[Any]]) -> str:
    """Return a section for each table that describes its columns, in Markdown."""
    return "\n".join(map(_section, tables))


def _section(table: TableSchema[Any]) -> str:
    head = [f"## {table.name}", "", table.description, "", "| column | type | meaning |", "| --- | --- | --- |"]
    rows = [f"| `{column.name}` | {column.kind} | {column.description} |" for column in table.columns]
    return "\n".join([*head, *rows, ""])
