"""The report as Arrow tables, for data frames and SQL: `Report.tables`.

A table has a column for every number of its row, with the name and meaning that `engine.numbers` declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec

from ddpprof.engine.finding import Finding
from ddpprof.engine.numbers import Declared, Number, Part, declared_in
from ddpprof.engine.topic import ReportView, TableSchema, Topic, further_topics
from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.report import Report, Tables
from ddpprof.report.topics import TOPICS

if TYPE_CHECKING:
    import pyarrow as pa

UNITS = ("_ns", "_bytes", "_bytes_per_s", "_ratio")
"""suffixes of columns that have a unit; counts begin with ``num_``"""
_ARROW = {int: "int64", float: "double", str: "string", bool: "bool"}


def arrow_type(column: Declared) -> str:
    """Return the Arrow type name of a column. Every column may contain nulls if the run cannot tell."""
    return _ARROW[column.kind]


@dataclass(frozen=True, slots=True)
class _NumberedFinding:
    number: Annotated[int, Number("number of the finding in the report")]
    finding: Annotated[Finding, Part()]


def _numbered(findings: Sequence[Finding], _report: ReportView) -> Iterable[_NumberedFinding]:
    return map(_NumberedFinding, range(1, len(findings) + 1), findings)


_FINDINGS: Topic[None, tuple[Finding, ...]] = Topic(
    "findings",
    tables=(
        TableSchema(
            "findings",
            "One row per finding, in the order of the report: incorrect training, gains, other findings, and finally "
            "findings that may be noise.",
            _NumberedFinding,
            _numbered,
        ),
    ),
)
_TOPIC_OF = {table.name: (topic, table) for topic in (*TOPICS, _FINDINGS) for table in topic.tables}
TABLES = tuple(_TOPIC_OF[one.name][1] for one in fields(Tables) if one.name in _TOPIC_OF)


def make_tables(report: Report) -> Tables:
    """Make the tables of a report. Raises `DdpprofError` if pyarrow is not installed."""
    arrow = require_arrow()
    further = {table.name: _table(arrow, table, found, report) for table, found in _further(report)}
    own = {name: _table(arrow, table, report[topic], report) for name, (topic, table) in _TOPIC_OF.items()}
    return Tables(**own, further=further)


def _further(report: Report) -> Iterator[tuple[TableSchema[Any], Any]]:
    """Yield the tables of topics from other packages whose results are rows of a dataclass with numbers."""
    for name, topic in further_topics().items():
        row = _row_of(topic.run_type)
        if name in report.further and row is not None:
            found = msgspec.convert(report.further[name], topic.run_type)
            rows = found if isinstance(found, tuple) else (found,)
            yield TableSchema(name, (row.__doc__ or name).partition("\n")[0], row, lambda rows, _: rows), rows


def _row_of(run_type: Any) -> type | None:
    """Return the dataclass with numbers in a topic's results; ``None`` if they consist of something else."""
    row = next(iter(get_args(run_type)), run_type)
    return row if isinstance(row, type) and is_dataclass(row) and declared_in(row) else None


def _table(arrow: Any, table: TableSchema[Any], found: Any, report: Report) -> pa.Table:
    rows = [] if found is None else list(table.rows(found, report))
    columns, declared = [], []
    for one in table.columns:
        try:
            columns.append(arrow.array([one.value(row) for row in rows], arrow_type(one)))
        except (OverflowError, arrow.ArrowInvalid) as error:  # a report in JSON may hold any number
            raise DdpprofError(f"{report.job.name}: {table.name}.{one.column} does not fit: {error}.") from error
        declared.append(arrow.field(one.column, arrow_type(one), metadata={"description": one.meaning}))
    about = {"description": table.description, "run": report.job.name, "ddpprof": report.ddpprof}
    return arrow.Table.from_arrays(columns, schema=arrow.schema(declared, metadata=about))


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


def schema_as_markdown(tables: Iterable[TableSchema[Any]]) -> str:
    """Return a section for each table that describes its columns, in Markdown."""
    return "\n".join(map(_section, tables))


def _section(table: TableSchema[Any]) -> str:
    head = [f"## {table.name}", "", table.description, "", "| column | type | meaning |", "| --- | --- | --- |"]
    rows = [f"| `{one.column}` | {arrow_type(one)} | {one.meaning} |" for one in table.columns]
    return "\n".join([*head, *rows, ""])
