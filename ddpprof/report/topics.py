"""The list of topics, their results for each rank and for the run, and the tables of a report.

A summary contains the contribution of one or more ranks to a report. It takes a few kilobytes, and once it exists, the
traces and records are no longer needed. Each rank is summarized independently, so that several processes or machines
can share the work. Summaries can be merged in any order and grouping, with bit-identical results.

The measures of each topic are stored as compressed msgpack, in which equal objects have equal bytes. Columns of times
are stored as differences, which compress well. Only the version of ddpprof that wrote the measures reads them, because
cache entries depend on the version.

`Report.tables` contains the report as Arrow tables, for data frames and SQL. A table has a column for every number that
the dataclass of its rows declares with `engine.numbers`.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding
from ddpprof.engine.numbers import Declared, Number, Part, declared_in
from ddpprof.engine.topic import Chapter, ReportView, TableSchema, Topic, View, find, further_topics
from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.layout import Section
from ddpprof.model import DdpModule, Rank
from ddpprof.report import Report, Tables
from ddpprof.topics.accumulation import ACCUMULATION, DISCARDED_GRADIENTS, UNUSED_FORWARDS
from ddpprof.topics.attempts import ATTEMPTS
from ddpprof.topics.bound import BOUND
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.compiled_graphs import COMPILED_GRAPHS, RECOMPILATIONS
from ddpprof.topics.copies import COPIES
from ddpprof.topics.data import DATA, INPUT_SIZES, PADDING, RANDOM_NUMBERS
from ddpprof.topics.devices import DATA_PARALLEL, DEVICES
from ddpprof.topics.facts import FACTS, RankFacts, RecordSummary
from ddpprof.topics.failure import FAILURE
from ddpprof.topics.hangs import HANGS
from ddpprof.topics.horovod import HOROVOD
from ddpprof.topics.idle import ALLOCATIONS, IDLE, OPTIMIZERS
from ddpprof.topics.kernel_slowdown import OverlapSlowdown, measure_slowdown, merge_slowdowns, thinned
from ddpprof.topics.kernels import MOST_KERNELS, KernelSummary, summarize_kernels
from ddpprof.topics.layer_collectives import LAYER_COLLECTIVES
from ddpprof.topics.link_limit import LINK_LIMIT, NCCL_CHOICES
from ddpprof.topics.losses import LOSSES
from ddpprof.topics.memory import MEMORY
from ddpprof.topics.overlap_slowdown import KERNELS, OVERLAP_SLOWDOWN
from ddpprof.topics.own_reduction import OWN_REDUCTION
from ddpprof.topics.process_settings import DEBUGGING, HOST_THREADS
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.ranks.rules import LATENESS
from ddpprof.topics.replicas import CHECKPOINTS, REPLICAS
from ddpprof.topics.rpc import RPC
from ddpprof.topics.script_code import SCRIPT_CODE, SCRIPT_LINES
from ddpprof.topics.script_collectives import SCRIPT_COLLECTIVES
from ddpprof.topics.steps.view import STEPS
from ddpprof.topics.unused_parameters import UNTRAINED, UNUSED_PARAMETERS
from ddpprof.topics.whole_run import WHOLE_RUN
from ddpprof.topics.wrapper import BUFFER_SYNCS, GRADIENT_COPIES

if TYPE_CHECKING:
    import pyarrow as pa


TOPICS: tuple[Topic[Any, Any], ...] = (
    FACTS,
    FAILURE,
    ATTEMPTS,
    STEPS,
    ACROSS,
    WHOLE_RUN,
    ACCUMULATION,
    DISCARDED_GRADIENTS,
    UNUSED_FORWARDS,
    BUCKETS,
    COMPILED_GRAPHS,
    RECOMPILATIONS,
    LATENESS,
    NCCL_CHOICES,
    LINK_LIMIT,
    OVERLAP_SLOWDOWN,
    KERNELS,
    ALLOCATIONS,
    IDLE,
    OPTIMIZERS,
    COPIES,
    SCRIPT_CODE,
    SCRIPT_LINES,
    DEBUGGING,
    HOST_THREADS,
    UNUSED_PARAMETERS,
    UNTRAINED,
    BUFFER_SYNCS,
    GRADIENT_COPIES,
    DATA_PARALLEL,
    RPC,
    OWN_REDUCTION,
    HOROVOD,
    MEMORY,
    SCRIPT_COLLECTIVES,
    LAYER_COLLECTIVES,
    DEVICES,
    LOSSES,
    REPLICAS,
    DATA,
    INPUT_SIZES,
    PADDING,
    RANDOM_NUMBERS,
    HANGS,
    CHECKPOINTS,
    BOUND,
)
"""topics, in the order in which the report contains their findings and sections; a topic has access to the results of
earlier topics
"""


def _all_topics() -> Iterator[Topic[Any, Any]]:
    yield from TOPICS
    yield from further_topics().values()


def measure_topics(rank: Rank, steps: Sequence[int], modules: Sequence[DdpModule]) -> dict[str, bytes]:
    """Measure the rank for every topic. Return the encoded results by topic name.

    `steps`: indices of the steps in the trace to measure. `modules`: the DDP modules of the job.
    """
    measured = ((one, one.of_rank(rank, steps, modules)) for one in _all_topics() if one.of_rank is not None)
    return {topic.name: encode(of_rank) for topic, of_rank in measured if of_rank is not None}


def with_topics(view: View, ranks: Sequence[Mapping[str, bytes]]) -> View:
    """Return the view with the results of all topics. `ranks`: the result of `measure_topics` for each rank."""
    for topic in (one for one in _all_topics() if one.name not in view.shown):
        shown = topic.of_run(view) if topic.of_run is not None else _combined(topic, ranks)
        if shown is not None:
            view = replace(view, shown={**view.shown, topic.name: shown})
    return view


def _combined(topic: Topic[Any, Any], ranks: Sequence[Mapping[str, bytes]]) -> Any:
    if topic.of_ranks is None:
        return None
    values = [decode(one[topic.name], topic.rank_type) for one in ranks if topic.name in one]
    return topic.of_ranks(values) if values else None


def find_all(view: View) -> tuple[Finding, ...]:
    return find(view, _all_topics())


_IN_REPORT = frozenset(field.name for field in fields(Report))


def report_fields(view: View) -> dict[str, Any]:
    """Return the results of the topics as fields of `Report`."""
    own = {topic.name: view.shown[topic.name] for topic in TOPICS if topic.name in _IN_REPORT & view.shown.keys()}
    further = {name: msgspec.to_builtins(view.shown[name]) for name in further_topics() if name in view.shown}
    return {**own, "further": further}


def topics_of(report: Report) -> Iterator[tuple[Topic[Any, Any], Any]]:
    """Yield each topic for which the report has results, with these results.

    Topics of packages that are no longer installed are skipped.
    """
    for topic in TOPICS:
        if topic.name in _IN_REPORT and (found := getattr(report, topic.name)):
            yield topic, found
    for name, topic in further_topics().items():
        if name in report.further:
            yield topic, msgspec.convert(report.further[name], topic.run_type)


def sections_of_topics(report: Report, chapter: Chapter) -> Iterator[Section]:
    for topic, found in topics_of(report):
        if chapter in topic.sections:
            yield from topic.sections[chapter](found, report)


def file_of(report: Report) -> str | None:
    """Return the type of the file of another tool that was read, or ``None`` if ranks were read."""
    return next((topic.file for topic, _ in topics_of(report) if topic.file is not None), None)


_T = TypeVar("_T")
_LEVEL = 1
"""compression level; at higher levels, compressing would take longer than reading the trace again"""


def encode(value: object) -> bytes:
    return zlib.compress(_ENCODER.encode(value), _LEVEL)


def decode(content: bytes, kind: type[_T]) -> _T:
    """Decode a value. Raises ``zlib.error`` and ``msgspec.MsgspecError``."""
    return msgspec.msgpack.decode(zlib.decompress(content), type=kind, dec_hook=_decoded)


class _Column(msgspec.Struct, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    is_differences: bool
    content: bytes


def _encoded(value: Any) -> Any:
    if isinstance(value, array):
        return value.tobytes()
    if isinstance(value, np.ndarray):
        as_differences = value.dtype == np.int64 and value.ndim == 1
        content = np.diff(value, prepend=np.int64(0)) if as_differences else np.ascontiguousarray(value)
        return _Column(value.dtype.str, value.shape, as_differences, content.tobytes())
    raise NotImplementedError(type(value))


def _decoded(kind: Any, value: Any) -> Any:
    if kind is array:
        return array("d", value)
    assert get_origin(kind) is np.ndarray, kind
    column = msgspec.convert(value, _Column)
    values: NDArray[Any] = np.frombuffer(column.content, np.dtype(column.dtype)).reshape(column.shape)
    return np.cumsum(values, dtype=np.int64) if column.is_differences else values


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encoded)


_OfRank = TypeVar("_OfRank")


@dataclass(frozen=True)
class RankSummary:
    rank: int
    world_size: int | None
    measured: Mapping[str, bytes]
    """topic name → encoded results of the topic; see `measure_topics`"""

    def of(self, topic: Topic[_OfRank, Any]) -> _OfRank | None:
        """Return the results of a topic for this rank, or ``None`` if there are none."""
        return decode(self.measured[topic.name], topic.rank_type) if topic.name in self.measured else None

    @cached_property
    def facts(self) -> RankFacts:
        return self.of(FACTS) or RankFacts(None, None)

    @property
    def record(self) -> RecordSummary | None:
        return self.facts.record

    @property
    def host(self) -> str | None:
        trace = self.facts.trace
        return self.record.facts.host if self.record else trace.host if trace else None


def of_each(topic: Topic[_OfRank, Any], ranks: Iterable[RankSummary]) -> dict[int, _OfRank]:
    """Return the results of a topic, by rank."""
    found = ((one.rank, one.of(topic)) for one in ranks)
    return {rank: of_rank for rank, of_rank in found if of_rank is not None}


@dataclass(frozen=True, slots=True)
class RunSummary:
    ranks: tuple[RankSummary, ...] = ()
    """ranks in ascending order"""
    overlap_slowdown: OverlapSlowdown | None = None
    """slowdown of computation by communication; ``None`` if no rank has a trace"""
    kernels: tuple[KernelSummary, ...] = ()
    """kernels that take the most time on rank `kernels_of`"""
    kernels_of: int | None = None
    """lowest rank that has profiled steps; ``None`` if no rank has any"""
    missing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """rank → messages about data that could not be read"""


def summarize_rank(rank: Rank, modules: Sequence[DdpModule]) -> RunSummary:
    """Summarize one rank. `modules`: the DDP modules of the job, which are the same on all ranks."""
    trace, steps = rank.trace, rank.measured_step_indices
    slowdown = measure_slowdown(trace, steps, rank.baseline_step_indices) if trace is not None else None
    return RunSummary(
        ranks=(RankSummary(rank.rank, rank.world_size, measure_topics(rank, steps, modules)),),
        overlap_slowdown=thinned(slowdown) if slowdown is not None else None,
        kernels=summarize_kernels(trace, steps)[:MOST_KERNELS] if trace is not None and steps else (),
        kernels_of=rank.rank if steps else None,
    )


def merge_summaries(summaries: Sequence[RunSummary]) -> RunSummary:
    """Merge summaries of disjoint ranks."""
    slowdowns = [one.overlap_slowdown for one in summaries if one.overlap_slowdown is not None]
    with_steps = [one for one in summaries if one.kernels_of is not None]
    first = min(with_steps, key=lambda one: one.kernels_of or 0, default=None)
    return RunSummary(
        ranks=tuple(sorted((rank for one in summaries for rank in one.ranks), key=lambda rank: rank.rank)),
        overlap_slowdown=merge_slowdowns(slowdowns) if slowdowns else None,
        kernels=first.kernels if first is not None else (),
        kernels_of=first.kernels_of if first is not None else None,
        missing=dict(sorted(pair for one in summaries for pair in one.missing.items())),
    )


UNITS = ("_ns", "_bytes", "_bytes_per_s", "_ratio")
"""suffixes of column names, which state the unit; names of counts begin with ``num_``"""
_ARROW = {int: "int64", float: "double", str: "string", bool: "bool"}


def arrow_type(column: Declared) -> str:
    """Return the Arrow type name of a column. Every column may contain nulls for unknown values."""
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
    """Return the tables of a report. Raises `DdpprofError` if pyarrow is not installed."""
    arrow = require_arrow()
    further = {table.name: _table(arrow, table, found, report) for table, found in _further(report)}
    own = {name: _table(arrow, table, report[topic], report) for name, (topic, table) in _TOPIC_OF.items()}
    return Tables(**own, further=further)


def _further(report: Report) -> Iterator[tuple[TableSchema[Any], Any]]:
    """Yield the tables of topics from other packages, if their results are instances of a dataclass with numbers."""
    for name, topic in further_topics().items():
        row = _row_of(topic.run_type)
        if name in report.further and row is not None:
            found = msgspec.convert(report.further[name], topic.run_type)
            rows = found if isinstance(found, tuple) else (found,)
            yield TableSchema(name, (row.__doc__ or name).partition("\n")[0], row, lambda rows, _: rows), rows


def _row_of(run_type: Any) -> type | None:
    """Return the dataclass of a topic's results, or ``None`` if it declares no numbers."""
    row = next(iter(get_args(run_type)), run_type)
    return row if isinstance(row, type) and is_dataclass(row) and declared_in(row) else None


def _table(arrow: Any, table: TableSchema[Any], found: Any, report: Report) -> pa.Table:
    rows = [] if found is None else list(table.rows(found, report))
    columns, declared = [], []
    for one in table.columns:
        try:
            columns.append(arrow.array([one.value(row) for row in rows], arrow_type(one)))
        except (OverflowError, arrow.ArrowInvalid) as error:  # a report in JSON may contain any number
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
    """Return a Markdown section for each table, with descriptions of its columns."""
    return "\n".join(map(_section, tables))


def _section(table: TableSchema[Any]) -> str:
    head = [f"## {table.name}", "", table.description, "", "| column | type | meaning |", "| --- | --- | --- |"]
    rows = [f"| `{one.column}` | {arrow_type(one)} | {one.meaning} |" for one in table.columns]
    return "\n".join([*head, *rows, ""])
