"""The report as Arrow tables, for data frames and SQL: `Report.tables`.

A table has a column for every number of its row, with the name and meaning that `engine.numbers` declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec

from ddpprof.engine.finding import Finding
from ddpprof.engine.numbers import Declared, Number, Part, declared_in
from ddpprof.engine.registry import further_topics
from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.report.tree import LightStepReport, RankReport, Report, StepReport, Tables
from ddpprof.topics.buckets.rows import BucketRow
from ddpprof.topics.collectives.table import CollectiveSummary
from ddpprof.topics.kernels import KernelSummary
from ddpprof.topics.memory import DeviceUse, RankMemory
from ddpprof.topics.overlap_slowdown import SlowedKernel
from ddpprof.topics.ranks.arrivals import RankWaiting
from ddpprof.topics.recording_cost import RecordingCost
from ddpprof.topics.steps.overlap import Overlap

if TYPE_CHECKING:
    import pyarrow as pa

UNITS = ("_ns", "_bytes", "_bytes_per_s", "_ratio")
"""suffixes of columns that have a unit; counts begin with ``num_``"""
_ARROW = {int: "int64", float: "double", str: "string", bool: "bool"}


@dataclass(frozen=True, slots=True)
class TableSchema:
    name: str
    """name of the attribute of `Tables`, and of the Parquet file"""
    description: str
    row: type
    rows: Callable[[Report], Iterable[Any]]

    @property
    def columns(self) -> tuple[Declared, ...]:
        return declared_in(self.row)


def arrow_type(column: Declared) -> str:
    """Return the Arrow type name of a column. Every column may contain nulls if the run cannot tell."""
    return _ARROW[column.kind]


@dataclass(frozen=True, slots=True)
class _Step:
    rank: Annotated[int, Number("rank in the job")]
    host: Annotated[str | None, Number("name of the rank's host")]
    is_usual: Annotated[bool, Number("whether the report's means include the step")]
    step: Annotated[StepReport, Part()]


@dataclass(frozen=True, slots=True)
class _LightStep:
    rank: Annotated[int, Number("rank in the job")]
    host: Annotated[str | None, Number("name of the rank's host")]
    step: Annotated[LightStepReport, Part()]


@dataclass(frozen=True, slots=True)
class _Rank:
    rank: Annotated[int, Number("rank in the job")]
    host: Annotated[str | None, Number("name of its host")]
    ended: Annotated[str | None, Number("how its training ended")]
    num_steps: Annotated[int, Number("number of profiled steps")]
    num_light_steps: Annotated[int, Number("number of steps without the profiler")]
    whole: Annotated[Overlap | None, Part("whole_", "in the whole trace, including the time between steps")]
    cost: Annotated[RecordingCost | None, Part("step_")]
    waiting: Annotated[RankWaiting | None, Part()]
    memory: Annotated[RankMemory | None, Part()]
    device: Annotated[DeviceUse | None, Part("device_")]
    """device on which the rank trains; ``None`` if unknown, or if there are several"""


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: Annotated[str, Number("name of the kernel or op")]
    launch_shape: Annotated[str | None, Number("grid and block; null on CPU")]
    input_shapes: Annotated[str | None, Number("shapes of its op's inputs")]
    position: Annotated[int | None, Number("on CPU: position among the ops of that name")]
    summary: Annotated[KernelSummary, Part()]
    slowed: Annotated[SlowedKernel | None, Part("slowdown_")]


@dataclass(frozen=True, slots=True)
class _NumberedFinding:
    number: Annotated[int, Number("number of the finding in the report")]
    finding: Annotated[Finding, Part()]


def _steps(report: Report) -> Iterator[_Step]:
    for rank in report.ranks:
        averaged = {step.step for step in report.averaged(rank)}
        for step in rank.steps:
            yield _Step(rank.rank, rank.host, step.step in averaged, step)


def _light_steps(report: Report) -> Iterator[_LightStep]:
    return (_LightStep(rank.rank, rank.host, step) for rank in report.ranks for step in rank.light_steps)


def _ranks(report: Report) -> Iterator[_Rank]:
    waiting = {one.rank: one for one in report.across.waiting} if report.across is not None else {}
    memory = {one.rank: one for one in report.memory}
    for one in report.ranks:
        yield _rank(one, waiting.get(one.rank), memory.get(one.rank))


def _rank(one: RankReport, waiting: RankWaiting | None, memory: RankMemory | None) -> _Rank:
    own = [device for device in memory.devices if device.is_own] if memory is not None else []
    return _Rank(
        rank=one.rank,
        host=one.host,
        ended=one.ended,
        num_steps=len(one.steps),
        num_light_steps=len(one.light_steps),
        whole=one.whole,
        cost=one.recording_cost,
        waiting=waiting,
        memory=memory,
        device=own[0] if len(own) == 1 else None,
    )


def _kernels(report: Report) -> Iterator[_Kernel]:
    slowed = {one.kernel: one for one in report.overlap_slowdown.kernels} if report.overlap_slowdown is not None else {}
    for summary in report.kernels:
        one = summary.kernel
        yield _Kernel(one.name, one.launch_shape, one.input_shapes, one.position, summary, slowed.get(one))


TABLES = (
    TableSchema(
        "steps",
        "One row per rank and profiled step. On an accelerator the `wrapper_` columns are times of the host, which "
        "launches the work; all other times are of the device, which runs it.",
        _Step,
        _steps,
    ),
    TableSchema(
        "light_steps",
        "One row per rank and step that ran without the profiler. All times are of the host. Compare the modes `off` "
        "and `light` to see what recording costs.",
        _LightStep,
        _light_steps,
    ),
    TableSchema("ranks", "One row per rank.", _Rank, _ranks),
    TableSchema(
        "buckets",
        "One row per gradient bucket of each DDP module. Times are medians over ranks and steps. They count from "
        "the end of the forward pass, except for durations. On an accelerator, times up to `launched_ns` are of the "
        "host.",
        BucketRow,
        lambda report: report.buckets,
    ),
    TableSchema(
        "collectives",
        "One row per kind of collective, process group and size class, over all profiled steps. A size class "
        "extends from one power of two to the next.",
        CollectiveSummary,
        lambda report: report.across.collectives if report.across is not None else (),
    ),
    TableSchema(
        "kernels",
        "One row for each of the kernels (on CPU: ops) that take most of the time of the first rank with a trace.",
        _Kernel,
        _kernels,
    ),
    TableSchema(
        "findings",
        "One row per finding, in the order of the report: incorrect training, gains, other findings, and finally "
        "findings that may be noise.",
        _NumberedFinding,
        lambda report: map(_NumberedFinding, range(1, len(report.findings) + 1), report.findings),
    ),
)


def make_tables(report: Report) -> Tables:
    """Make the tables of a report. Raises `DdpprofError` if pyarrow is not installed."""
    arrow = require_arrow()
    further = {table.name: _table(arrow, table, report) for table in _further(report)}
    return Tables(**{table.name: _table(arrow, table, report) for table in TABLES}, further=further)


def _further(report: Report) -> Iterator[TableSchema]:
    """Yield the tables of topics from other packages whose results are rows of a dataclass with numbers."""
    for name, topic in further_topics().items():
        row = _row_of(topic.run_type)
        if name in report.further and row is not None:
            found = msgspec.convert(report.further[name], topic.run_type)
            rows = found if isinstance(found, tuple) else (found,)
            yield TableSchema(name, (row.__doc__ or name).partition("\n")[0], row, partial(_given, rows))


def _row_of(run_type: Any) -> type | None:
    """Return the dataclass with numbers in a topic's results; ``None`` if they consist of something else."""
    row = next(iter(get_args(run_type)), run_type)
    return row if isinstance(row, type) and is_dataclass(row) and declared_in(row) else None


def _given(rows: Iterable[Any], _report: Report) -> Iterable[Any]:
    return rows


def _table(arrow: Any, table: TableSchema, report: Report) -> pa.Table:
    rows = list(table.rows(report))
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


def schema_as_markdown(tables: Iterable[TableSchema]) -> str:
    """Return a section for each table that describes its columns, in Markdown."""
    return "\n".join(map(_section, tables))


def _section(table: TableSchema) -> str:
    head = [f"## {table.name}", "", table.description, "", "| column | type | meaning |", "| --- | --- | --- |"]
    rows = [f"| `{one.column}` | {arrow_type(one)} | {one.meaning} |" for one in table.columns]
    return "\n".join([*head, *rows, ""])
