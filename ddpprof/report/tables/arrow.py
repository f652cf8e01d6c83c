"""All Arrow tables of a report, and their Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.report.tables.of_ranks import FINDINGS, RANKS
from ddpprof.report.tables.of_steps import LIGHT_STEPS, STEPS
from ddpprof.report.tables.of_work import BUCKETS, COLLECTIVES, KERNELS
from ddpprof.report.tables.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from ddpprof.report.tree import Report

TABLES: tuple[TableSchema[Any], ...] = (STEPS, LIGHT_STEPS, RANKS, BUCKETS, COLLECTIVES, KERNELS, FINDINGS)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tables:
    """The tables of one report. Pandas, polars, DuckDB and others read Arrow tables without a copy.

    Columns have their unit in their name, and their description in the metadata of their field.
    """

    steps: pa.Table
    light_steps: pa.Table
    ranks: pa.Table
    buckets: pa.Table
    collectives: pa.Table
    kernels: pa.Table
    findings: pa.Table

    def __iter__(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield names and tables, so that ``dict(tables)`` has all of them."""
        return ((one.name, getattr(self, one.name)) for one in fields(self))

    def __repr__(self) -> str:
        return f"Tables({', '.join(f'{name}: {table.num_rows} rows' for name, table in self)})"


def make_tables(report: Report) -> Tables:
    """Make the tables of a report. Raises `DdpprofError` if pyarrow is not installed."""
    arrow = require_arrow()
    return Tables(**{table.name: _table(arrow, table, report) for table in TABLES})


def parquet_bytes(table: pa.Table) -> bytes:
    """Return the content of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def require_arrow() -> Any:
    """Return the module pyarrow. Raises `DdpprofError` if it is not installed."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise DdpprofError(f"tables need pyarrow. {how_to_install('pyarrow')}") from None
    return pa


def _table(arrow: Any, table: TableSchema[Any], report: Report) -> pa.Table:
    rows = list(table.rows(report))
    columns = []
    for column in table.columns:
        try:
            columns.append(arrow.array([column.value(row) for row in rows], column.kind.value))
        except (OverflowError, arrow.ArrowInvalid) as error:  # a report in JSON may hold any number
            raise DdpprofError(f"{report.job.name}: {table.name}.{column.name} does not fit: {error}.") from error
    declared = [
        arrow.field(column.name, column.kind.value, metadata={"description": column.description})
        for column in table.columns
    ]
    about = {"description": table.description, "run": report.job.name, "ddpprof": report.ddpprof}
    return arrow.Table.from_arrays(columns, schema=arrow.schema(declared, metadata=about))
