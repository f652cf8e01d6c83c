"""Two runs side by side: what is different about them, what became slower, and whether that is noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddpprof.comparison.compare import BucketChange, Comparison, MetricChange
from ddpprof.comparison.gate import Verdict
from ddpprof.comparison.kernels import KernelChange
from ddpprof.measures.bucket_table import BucketRow
from ddpprof.measures.shift import Shift
from ddpprof.render.sections.layout import ABSENT, Column, Line, Section, Table, clean, count, megabytes, ms
from ddpprof.render.sections.slowdown import kernel_name

_MAX_BUCKETS = 24
_MAX_KERNELS = 10
_WORTH_A_ROW_NS = 10_000


def comparison_sections(comparison: Comparison, verdicts: Sequence[Verdict] = ()) -> tuple[Section, ...]:
    return (
        Line(f"A: {clean(comparison.a)} · B: {clean(comparison.b)}"),
        *(Line(f"Note: {clean(text, most=400)}", is_warning=True) for text in comparison.missing),
        *_settings(comparison),
        *_metrics(comparison),
        *_buckets(comparison),
        *_kernels(comparison),
        *_verdicts(verdicts),
    )


def _settings(comparison: Comparison) -> Iterable[Section]:
    if comparison.settings:
        rows = tuple((clean(s.name), clean(s.a), clean(s.b)) for s in comparison.settings)
        columns = tuple(Column(name, is_number=False) for name in ("", "A", "B"))
        yield Table("What is different about the runs", columns, rows)


def _signed(ns: float | None) -> str:
    return ABSENT if ns is None else f"{ns / 1e6:+.2f}"


def _metrics(comparison: Comparison) -> Iterable[Section]:
    if not comparison.metrics:
        return
    rows = tuple(
        (
            change.metric,
            ms(change.a_ns),
            ms(change.b_ns),
            _signed(change.difference.shift if change.difference else None),
            ABSENT if change.fraction is None else f"{change.fraction:+.1%}",
            _interval(change.difference),
            _word(change),
        )
        for change in comparison.metrics
    )
    names = ("", "A", "B", "B - A", "", "95% interval", "")
    columns = tuple(Column(name, is_number=index not in (0, 6)) for index, name in enumerate(names))
    steps = comparison.metrics[0]
    yield Table(
        "Per step, ms (mean over ranks, median over steps)",
        columns,
        rows,
        f"from {count(steps.num_steps_a, 'step')} of A and {steps.num_steps_b} of B; B - A is the median of all "
        "differences between their steps, and its interval comes from the steps' own spread: what sets the two runs "
        "apart as wholes, such as another machine, is not in it",
    )


def _interval(difference: Shift | None) -> str:
    if difference is None or difference.low is None:
        return ABSENT
    return f"{_signed(difference.low)} … {_signed(difference.high)}"


def _word(change: MetricChange) -> str:
    if change.difference is None or change.difference.is_beyond_noise is None:
        return "too few steps"
    if not change.difference.is_beyond_noise:
        return "noise"
    return "more" if change.difference.shift > 0 else "less"


_TIMES: tuple[tuple[str, Callable[[BucketRow], int | None]], ...] = (
    ("ready", lambda b: b.ready_ns),
    ("launched", lambda b: b.launched_ns),
    ("finished", lambda b: b.finished_ns),
    ("transfer", lambda b: b.transfer_ns),
)


def _buckets(comparison: Comparison) -> Iterable[Section]:
    shown = comparison.buckets[:_MAX_BUCKETS]
    if not shown:
        return
    more = len(comparison.buckets) - _MAX_BUCKETS
    named = any(bucket is not None and bucket.first_parameter is not None for c in shown for bucket in (c.a, c.b))
    names = ("A", "B", "MB", *(name for name, _ in _TIMES))
    yield Table(
        "Buckets, A → B, ms after the end of the forward (medians)",
        tuple(map(Column, names)),
        tuple(_bucket(change) for change in shown),
        f"matched by {'the parameters in them' if named else 'their place and size'}"
        + (f"; {more} more are in the JSON form" if more > 0 else ""),
    )


def _bucket(change: BucketChange) -> tuple[str, ...]:
    pair = (change.a, change.b)
    index = [ABSENT if bucket is None else str(bucket.index) for bucket in pair]
    size = next(bucket.num_bytes for bucket in pair if bucket is not None)
    times = [[None if bucket is None else time(bucket) for bucket in pair] for _, time in _TIMES]
    return (*index, megabytes(size), *(ABSENT if not any(t) else " → ".join(map(ms, t)) for t in times))


def _kernels(comparison: Comparison) -> Iterable[Section]:
    slower = [change for change in comparison.kernels if _became_slower(change)]
    rows = tuple(
        (
            kernel_name(change.kernel),
            clean(change.kernel.launch_shape or change.kernel.input_shapes or ABSENT, most=40),
            f"{change.b.runs_per_step:.4g}",
            ms(change.a.median_ns),
            ms(change.b.median_ns),
            ABSENT if change.ratio is None else f"{change.ratio:.2f} ×",
            _signed(change.lost_ns_per_step),
        )
        for change in slower[:_MAX_KERNELS]
    )
    if rows:
        names = ("kernel", "shape", "per step", "A", "B", "", "lost per step")
        more = len(slower) - _MAX_KERNELS
        yield Table(
            "Kernels that became slower, ms (medians; beyond the noise of their runs)",
            tuple(Column(name, is_number=index > 1) for index, name in enumerate(names)),
            rows,
            f"{more} more are in the JSON form" if more > 0 else "",
        )


def _became_slower(change: KernelChange) -> bool:
    return change.b.median_ns > change.a.median_ns and change.lost_ns_per_step >= _WORTH_A_ROW_NS


def _verdicts(verdicts: Sequence[Verdict]) -> Iterable[Section]:
    for verdict in verdicts:
        word = "FAILED" if verdict.failed else "passed"
        yield Line(f"{word}: {clean(verdict.condition.text)}: {verdict.because}", is_warning=verdict.failed)
