"""Sections of a comparison of two jobs: differences in settings, times, buckets and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddpprof.comparison import MEAN_STEP, NOTICEABLE, BucketChange, Comparison, KernelChange, MetricChange
from ddpprof.comparison.gate import ConditionVerdict, GateResult
from ddpprof.comparison.repeated import RepeatedReport
from ddpprof.layout import ABSENT, Column, Line, Section, Table, clean, columns, count, megabytes, ms
from ddpprof.statistics.between_runs import CONFIDENCE, MOST_RUNS
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.kernels import kernel_name

_MAX_BUCKETS = 24
_MAX_KERNELS = 10
_WORTH_A_ROW_NS = 10_000


def comparison_sections(
    comparison: Comparison, verdicts: Sequence[ConditionVerdict] = (), how_to_record: Sequence[str] = ()
) -> tuple[Section, ...]:
    """Return the sections. `how_to_record`: commands that record the runs that are still needed."""
    return (
        Line(f"A: {clean(comparison.a)} · B: {clean(comparison.b)}"),
        *(Line(f"Note: {clean(text, most=400)}", is_warning=True) for text in comparison.missing),
        *_settings(comparison),
        *_metrics(comparison),
        *_buckets(comparison),
        *_kernels(comparison),
        *_verdicts(verdicts),
        *_more_runs(comparison, verdicts, how_to_record),
    )


def _settings(comparison: Comparison) -> Iterable[Section]:
    if comparison.settings:
        rows = tuple((clean(s.name), clean(s.a), clean(s.b)) for s in comparison.settings)
        names = ("", "A", "B")
        yield Table("Differences between the runs", columns(*names, words=names), rows)


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
            _signed(change.difference.shift_ns if change.difference else None),
            ABSENT if change.fraction is None else f"{change.fraction:+.1%}",
            _interval(change),
            _word(change, comparison.metrics[0].a_ns or 0),
        )
        for change in comparison.metrics
    )
    names = ("", "A", "B", "B - A", "", "interval", "")
    columns = tuple(Column(name, is_number=index not in (0, 6)) for index, name in enumerate(names))
    yield Table(
        "Per step, ms (means over ranks, medians over steps and runs; the step time is from each run's report)",
        columns,
        rows,
        _note(comparison),
    )


def _note(comparison: Comparison) -> str:
    step = comparison.metrics[0]
    has_mean = any(one.metric == MEAN_STEP for one in comparison.metrics)
    mean = "mean step: over the whole run, including evaluations, checkpoints and recorded steps; " if has_mean else ""
    num_a, num_b = comparison.num_runs_a, comparison.num_runs_b
    steps = f"{count(step.num_steps_a, 'step')} of A and {step.num_steps_b} of B"
    if num_a == num_b == 1:
        return (
            f"{mean}from one run each, with {steps}; the 95% interval is for these steps only, not for the variation "
            f"between runs of the same job. A difference within the interval is noise; a larger difference may also be "
            f"noise"
        )
    return (
        f"{mean}from {count(num_a, 'run')} of A and {num_b} of B, {steps} in all; B - A is the median of all "
        f"differences between their runs. The {CONFIDENCE:.1%} intervals are based on the variation between runs. "
        f"They are simultaneous within each of two groups: the measures of --fail-on, whose intervals are narrower, "
        f"and all other measures"
    )


def interval_of(change: MetricChange) -> tuple[float, float] | None:
    """Return the interval to show, in ns: from the variation between runs or, for one run per side, between steps."""
    if change.difference is not None and change.difference.is_measured:
        return change.difference.low_ns, change.difference.high_ns
    if change.of_steps is None or change.of_steps.low is None or change.of_steps.high is None:
        return None
    return change.of_steps.low, change.of_steps.high


def _interval(change: MetricChange) -> str:
    ends = interval_of(change)
    return ABSENT if ends is None else f"{_signed(ends[0])} … {_signed(ends[1])}"


def _word(change: MetricChange, step_ns: int) -> str:
    """Return ``more``, ``less``, ``noise`` or ``cannot tell``.

    ``cannot tell`` is returned if the interval is so wide that it includes a noticeable change. `step_ns`: step time of
    A.
    """
    difference = change.difference
    if change.is_beyond_noise is None or difference is None:
        return "cannot tell"
    if change.is_beyond_noise:
        return "more" if difference.shift_ns > 0 else "less"
    may_matter = difference.is_measured and max(-difference.low_ns, difference.high_ns) > NOTICEABLE * step_ns
    return "cannot tell" if may_matter else "noise"


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
        f"Buckets, A → B, ms after the end of the forward pass (medians{_of_typical(comparison)})",
        tuple(map(Column, names)),
        tuple(_bucket(change) for change in shown),
        f"matched by {'their parameters' if named else 'position and size'}"
        + (f"; {more} more are in the JSON output" if more > 0 else ""),
    )


def _bucket(change: BucketChange) -> tuple[str, ...]:
    pair = (change.a, change.b)
    index = [ABSENT if bucket is None else str(bucket.index) for bucket in pair]
    size = next(bucket.num_bytes for bucket in pair if bucket is not None)
    times = [[None if bucket is None else time(bucket) for bucket in pair] for _, time in _TIMES]
    return (*index, megabytes(size), *(ABSENT if t == [None, None] else " → ".join(map(ms, t)) for t in times))


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
            _KERNELS_OF_ONE if comparison.num_runs_a == comparison.num_runs_b == 1 else _KERNELS_OF_SEVERAL,
            tuple(Column(name, is_number=index > 1) for index, name in enumerate(names)),
            rows,
            f"{more} more are in the JSON output" if more > 0 else "",
        )


_KERNELS_OF_ONE = (
    "Kernels that became slower, ms (medians; differences exceed the noise within a run, but may be due to noise "
    "between runs)"
)
_KERNELS_OF_SEVERAL = "Kernels that are slower in every run of B than in any run of A, ms (medians of a typical run)"


def _of_typical(comparison: Comparison) -> str:
    return "" if comparison.num_runs_a == comparison.num_runs_b == 1 else " of a typical run"


def _became_slower(change: KernelChange) -> bool:
    return change.b.median_ns > change.a.median_ns and change.lost_ns_per_step >= _WORTH_A_ROW_NS


def _verdicts(verdicts: Sequence[ConditionVerdict]) -> Iterable[Section]:
    for verdict in verdicts:
        text = f"{_OUTCOMES[verdict.outcome]}: {clean(verdict.condition.text)}: {verdict.because}"
        yield Line(text, is_warning=verdict.outcome is not GateResult.PASSED)


_OUTCOMES = {GateResult.PASSED: "passed", GateResult.FAILED: "FAILED", GateResult.UNKNOWN: "CANNOT TELL"}


def _more_runs(
    comparison: Comparison, verdicts: Sequence[ConditionVerdict], how_to_record: Sequence[str]
) -> Iterable[Section]:
    needed = runs_wanted(comparison, verdicts)
    if needed is None:
        return
    told = "an increase beyond the limits" if verdicts else f"a difference of {NOTICEABLE:.0%} of the step"
    if needed > MOST_RUNS:
        yield Line(
            f"More than {MOST_RUNS} runs on each side would be needed to distinguish {told} from noise, because the "
            "runs vary too much. Record longer runs (--steps) on an otherwise idle machine."
        )
        return
    more = [max(0, needed - number) for number in (comparison.num_runs_a, comparison.num_runs_b)]
    if more[0] == more[1]:
        asked = f"needs {more[0]} more runs on each side" if more[0] > 1 else "needs one more run on each side"
    elif not all(more):
        asked = f"needs {count(max(more), 'more run')} of {'A' if more[0] else 'B'}"
    else:
        asked = f"needs {more[0]} more runs of A and {more[1]} of B"
    record_with = " Record with:" if how_to_record else ""
    yield Line(f"To distinguish {told} from noise, this comparison {asked}.{record_with}")
    yield from (Line(f"    {command}") for command in how_to_record)


def runs_wanted(comparison: Comparison, verdicts: Sequence[ConditionVerdict]) -> int | None:
    """Return the number of runs that each side needs; ``None`` if everything is decided."""
    if not verdicts:
        return comparison.runs_needed
    return max((one.runs_needed for one in verdicts if one.runs_needed is not None), default=None)


def repeated_sections(report: RepeatedReport) -> tuple[Section, ...]:
    return (
        Line(clean(report.name)),
        *(Line(f"Note: {clean(text, most=400)}", is_warning=True) for text in report.missing),
        *_runs(report),
        *_findings(report),
    )


def _runs(report: RepeatedReport) -> Iterable[Section]:
    rows = tuple((clean(run.name), str(run.num_steps), ms(run.step_ns)) for run in report.runs)
    spread = report.spread
    yield Table(
        "Runs, ms per step (mean over ranks, median over steps)",
        (Column("run", is_number=False), Column("steps"), Column("step")),
        rows,
        ""
        if spread is None
        else f"the slowest run takes {spread:.0%} longer than the fastest; this is the noise between runs",
    )


def _findings(report: RepeatedReport) -> Iterable[Section]:
    if not report.findings:
        yield Line(f"None of the {count(len(report.runs), 'run')} has any findings.")
        return
    rows = tuple(
        (clean(one.title), f"{one.num_runs_beyond_noise} of {len(report.runs)}", str(one.num_runs))
        for one in report.findings
    )
    columns = (Column("finding", is_number=False), Column("beyond noise in"), Column("seen in"))
    yield Table("Findings of all runs", columns, rows, "titles are from the first run that has the finding")
