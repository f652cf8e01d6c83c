"""Tables of gradient buckets: when each was ready, sent and finished, and which parameters it contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ddpprof.engine.topic import ReportView, TableSchema
from ddpprof.layout import ABSENT, Section, Table, clean, columns, cut_off, megabytes, ms, notes, optional
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.own_reduction import OWN_REDUCTION
from ddpprof.topics.steps.view import steps_of

_MAX_BUCKETS = 24

_WHAT_THE_COLUMNS_MEAN = (
    "ready: when all gradients of the bucket are computed; late: the rank that launches the bucket last in most "
    "steps, and its delay relative to the first rank"
)
_NOT_OF_DDP = "buckets were identified by order and size; buckets sent after the backward pass are not included"
_FROM_A_TRACE_ALONE = (
    "buckets were identified by order and size; to see the parameters of each bucket and when it was ready, record the "
    "job with: ddpprof trace train.py"
)
_UNTOLD = (
    "the collectives of the buckets cannot be identified, because the backward pass does not have one collective per "
    "bucket: a communication hook splits the buckets, or the model reduces other tensors as well"
)

_CELLS: Mapping[str, Callable[[BucketRow], str]] = {
    "MB": lambda b: megabytes(b.num_bytes),
    "tensors": lambda b: optional(b.num_parameters),
    "ready": lambda b: ms(b.ready_ns),
    "launched": lambda b: ms(b.launched_ns),
    "started": lambda b: ms(b.started_ns),
    "finished": lambda b: ms(b.finished_ns),
    "late": lambda b: ABSENT if b.late_rank is None else f"rank {b.late_rank} +{ms(b.late_by_ns)}",
}
_BY_DEVICE = ("started", "finished")
_BY_HOST = tuple(name for name in _CELLS if name not in _BY_DEVICE)
_BY_HOST_MEANS = "host: when the training thread launched the work; the accelerator may run the work later"
_BY_DEVICE_MEANS = "device: when the accelerator did the work, on the host's clock"


def bucket_tables(found: Sequence[BucketRow], report: ReportView) -> Iterable[Section]:
    buckets, is_ddps = found[:_MAX_BUCKETS], report[OWN_REDUCTION] is None
    note = cut_off(len(found), _MAX_BUCKETS, "buckets")
    recorded = any(bucket.first_parameter is not None for bucket in buckets)
    alone = _FROM_A_TRACE_ALONE if is_ddps else _NOT_OF_DDP
    since = "the end of the forward pass" if is_ddps else "the backward pass began"
    yield from _tables_of_times(
        buckets,
        report,
        since,
        notes(
            _several_passes(report, buckets),
            _not_found(report, buckets),
            _WHAT_THE_COLUMNS_MEAN if recorded else notes(alone, note),
        ),
    )
    if recorded:
        of_parameters = ("first parameter", "last parameter", "slowest gradient")
        yield Table(
            "",
            columns("bucket", *of_parameters, words=of_parameters),
            tuple(_parameters(report, bucket) for bucket in buckets),
            note,
        )


def _tables_of_times(buckets: Sequence[BucketRow], report: ReportView, since: str, note: str) -> Iterable[Section]:
    """Yield tables of times; for an accelerator, the host's and the device's times go into separate tables."""
    after = f", ms after {since} ({_medians(buckets)})"
    if not report.on_accelerator:
        yield _table(buckets, report, f"Gradient buckets{after}", tuple(_CELLS), note)
        return
    yield _table(buckets, report, f"Gradient buckets on the host{after}", _BY_HOST, notes(_BY_HOST_MEANS, note))
    yield _table(buckets, report, f"Gradient buckets on the device{after}", _BY_DEVICE, _BY_DEVICE_MEANS)


def _table(buckets: Sequence[BucketRow], report: ReportView, title: str, names: Sequence[str], note: str) -> Table:
    return Table(
        title,
        columns("bucket", *names, words=("late",)),
        tuple((_bucket_name(report, bucket), *(_CELLS[name](bucket) for name in names)) for bucket in buckets),
        note,
    )


def _medians(buckets: Sequence[BucketRow]) -> str:
    return "medians" if all(bucket.num_passes == 1 for bucket in buckets) else "medians over all backward passes"


def _several_passes(report: ReportView, buckets: Sequence[BucketRow]) -> str:
    """Return a note on the number of synchronized backward passes in a step, if there are several."""
    passes = {bucket.module: bucket.num_passes for bucket in buckets if bucket.num_passes > 1}
    if not passes:
        return ""
    if len(report.modules) < 2:
        return f"a step has {passes[0]} synchronized backward passes, and each sends every bucket"
    counts = ", ".join(f"{number} through module {module}" for module, number in passes.items())
    return f"a step has several synchronized backward passes ({counts}), and each sends every bucket"


def _not_found(report: ReportView, buckets: Sequence[BucketRow]) -> str:
    """Return a note if the profiled steps do not show when buckets were sent."""
    is_profiled = any(rank.steps for rank in steps_of(report))
    is_told = any(bucket.launched_ns is not None or bucket.started_ns is not None for bucket in buckets)
    return _UNTOLD if is_profiled and not is_told else ""


def _parameters(report: ReportView, b: BucketRow) -> tuple[str, ...]:
    names = (b.first_parameter, b.last_parameter, b.slowest_parameter)
    return (_bucket_name(report, b), *(ABSENT if name is None else clean(name) for name in names))


def _bucket_name(report: ReportView, bucket: BucketRow) -> str:
    return str(bucket.index) if len(report.modules) < 2 else f"{bucket.module}/{bucket.index}"


BUCKET_TABLE: TableSchema[tuple[BucketRow, ...]] = TableSchema(
    "buckets",
    "One row per gradient bucket of each DDP module. Values are medians over ranks and steps. Times are relative to "
    "the end of the forward pass. On an accelerator, `launched_ns` and the times before it are host times.",
    BucketRow,
    lambda buckets, _: buckets,
)
