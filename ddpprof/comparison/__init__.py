"""Compare two jobs, each with one or more runs, and distinguish differences from noise.

The value of a step is the mean over the ranks. The value of a run is the median over its steps: profiled steps, or
lightly recorded steps if one of the runs has no profiled steps. Each run is one observation. For kernels:

    noise of a median = 1.57 × (3rd quartile - 1st quartile) / sqrt(runs)      (McGill, Tukey, Larsen 1978)

Two medians differ by more than noise if their difference is larger than the sum of their noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import sqrt
from pathlib import PurePath
from statistics import fmean, mean, median
from typing import Any, TypeVar

from ddpprof.engine.numbers import metrics_of
from ddpprof.errors import DdpprofError
from ddpprof.layout import count, in_ms
from ddpprof.model import Kernel
from ddpprof.report import LightStepReport, Report, ShownInNotebooks, StepReport
from ddpprof.statistics.between_runs import (
    Difference,
    Shift,
    difference_between,
    plausible_noise_ns,
    runs_needed,
    shift_between,
)
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.kernels import MOST_KERNELS, KernelSummary, kernel_name
from ddpprof.topics.wrapper import WrapperCost
from ddpprof.version import __version__
from ddpprof.words import utf8_text


@dataclass(frozen=True, slots=True)
class RunSet:
    reports: tuple[Report, ...]
    """reports of the runs; at least one"""
    folder: str | None = None
    """folder of a recording with ``ddpprof trace --repeat``, to which further runs can be added"""

    @property
    def name(self) -> str:
        if self.folder is not None:
            return f"{utf8_text(PurePath(self.folder).name)} ({count(len(self.reports), 'run')})"
        names = list(dict.fromkeys(report.job.name for report in self.reports))
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        return shown if len(self.reports) == 1 else f"{shown} ({len(self.reports)} runs)"

    @property
    def typical(self) -> Report:
        """The run with the median step time. Its buckets and kernels represent all runs."""
        ordered = sorted(self.reports, key=_usual_step_ns)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def missing(self) -> tuple[str, ...]:
        """Messages about missing data.

        A message that does not apply to all runs contains the number of runs to which it applies.
        """
        counts = Counter(text for report in self.reports for text in report.missing)
        all_of_them = len(self.reports)
        said = [text if n == all_of_them else f"{text} ({n} of {all_of_them} runs)" for text, n in counts.items()]
        mixed = ", ".join(differing_facts(self.reports))
        return (*said, *([f"the runs are not from the same job: they differ in {mixed}"] if mixed else []))


def _usual_step_ns(report: Report) -> float:
    steps_ns = [step.duration_ns for rank in report.ranks for step in rank.measured_steps]
    steps_ns += [step.duration_ns for rank in report.ranks for step in rank.light_steps]
    return median(steps_ns) if steps_ns else 0.0


def differing_facts(reports: Sequence[Report]) -> list[str]:
    """Return the names of the facts in which the runs differ.

    If a run has no information about its DDP modules, only facts that all runs have are compared.
    """
    facts = [facts_of(report) for report in reports]
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    are_all_known = all(report.job.modules for report in reports)
    compared = [name for name in names if are_all_known or all(name in of_run for of_run in facts)]
    return [name for name in compared if len({of_run.get(name) for of_run in facts}) > 1]


def facts_of(report: Report) -> Mapping[str, str]:
    """Return the recorded facts about the job: world size, versions, settings of DDP."""
    job = report.job
    facts = {
        "command": " ".join(job.command),
        "ranks": str(job.world_size if job.world_size is not None else job.num_ranks_read),
        "hosts": str(len(job.hosts)) if job.hosts else None,
        "device": job.device,
        "backend": job.backend,
        "torch": job.torch,
    }
    for index, module in enumerate(job.modules):
        of_module = f"module {index}: " if len(job.modules) > 1 else ""
        facts[f"{of_module}model"] = module.name
        facts[f"{of_module}parameters"] = f"{module.num_parameters} ({module.parameter_bytes} bytes)"
        facts[f"{of_module}buckets"] = str(module.num_buckets)
        facts[f"{of_module}comm hook"] = module.comm_hook
        facts |= {f"{of_module}{setting}": value for setting, value in module.settings.items()}
    return {name: value for name, value in facts.items() if value}


_StepT = TypeVar("_StepT", StepReport, LightStepReport)

COMPARISON_FORMAT = 1
"""version of the JSON document; increased if a field is removed or changes its meaning, but not if a field is added"""

NOTICEABLE = 0.05
"""by default, a comparison should be able to detect a change of the step time by this fraction"""


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One measure of both jobs, in ns per step. The change is B minus A: a positive value means that B is slower."""

    metric: str
    a_ns: int | None
    b_ns: int | None
    """median over the runs"""
    num_steps_a: int
    num_steps_b: int
    """number of steps in all runs together"""
    runs_a_ns: tuple[int, ...] = ()
    runs_b_ns: tuple[int, ...] = ()
    """value of each run that has this measure: the median over the run's steps or, for `FASTEST_STEP`, the minimum"""
    difference: Difference | None = None
    of_steps: Shift | None = None
    """shift between the steps of A and of B, if each job has one run; a change within the interval of the shift is
    noise
    """
    num_questions: int = 1
    """number of differences, including this one, whose intervals hold simultaneously with the stated confidence"""

    @property
    def fraction(self) -> float | None:
        """Difference as a fraction of `a_ns`."""
        if self.difference is None or not self.a_ns:
            return None
        return self.difference.shift_ns / self.a_ns

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the change exceeds the noise; ``None`` if there are too few runs to decide."""
        if self.difference is None:
            return None
        beyond = self.difference.is_beyond_noise
        if beyond is None and self.of_steps is not None and self.of_steps.is_beyond_noise is False:
            return False  # the steps of a single run vary by as much
        return beyond

    @property
    def num_runs(self) -> int:
        """Number of runs on the side with fewer runs."""
        return min(len(self.runs_a_ns), len(self.runs_b_ns))

    def runs_needed(self, limit_ns: float) -> int | None:
        """Return the number of runs per side that is needed to distinguish a difference of `limit_ns` from zero."""
        if self.difference is None:
            return None
        return runs_needed(self.difference, self.num_runs, limit_ns, self.num_questions)


@dataclass(frozen=True, slots=True)
class BucketChange:
    """A bucket with the same parameters in both jobs, or a bucket of only one job."""

    a: BucketRow | None
    b: BucketRow | None


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that differs between the jobs, such as the world size, the bucket cap or a version."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison(ShownInNotebooks):
    format: int
    ddpprof: str
    a: str
    b: str
    """name of job B"""
    num_runs_a: int
    num_runs_b: int
    settings: tuple[SettingChange, ...]
    metrics: tuple[MetricChange, ...]
    buckets: tuple[BucketChange, ...]
    kernels: tuple[KernelChange, ...]
    """kernels that became slower or faster by more than noise, in descending order of the increase in time per step"""
    missing: tuple[str, ...]
    """messages that say which data cannot be compared, and why"""
    runs_needed: int | None = None
    """number of runs per side that is needed to detect a difference of 5 % of the step; ``None`` if there are enough
    runs
    """


def compare(a: RunSet, b: RunSet, asked: Sequence[str] = ("step",)) -> Comparison:
    """Compare two jobs.

    Confidence intervals hold simultaneously within two families of measures: `asked`, and all other measures.
    """
    metrics = _metrics(a.reports, b.reports, asked)
    slower, why_not = _kernels(a, b)
    missing = [f"{name}: {text}" for name, side in (("A", a), ("B", b)) for text in side.missing]
    if not metrics:
        missing.append("nothing to compare: the runs have no steps of the same kind")
    return Comparison(
        format=COMPARISON_FORMAT,
        ddpprof=__version__,
        a=a.name,
        b=b.name,
        num_runs_a=len(a.reports),
        num_runs_b=len(b.reports),
        settings=tuple(_settings(a.typical, b.typical)),
        metrics=metrics,
        buckets=_buckets(a.typical.buckets, b.typical.buckets),
        kernels=slower,
        missing=(*missing, *([why_not] if why_not else [])),
        runs_needed=_runs_needed(metrics),
    )


def compare_reports(a: Report | Iterable[Report], b: Report | Iterable[Report]) -> Comparison:
    """Compare two jobs, each given by the report of one run or by the reports of several runs.

    Raises `DdpprofError` if a job has no report.
    """
    first, second = (RunSet((side,) if isinstance(side, Report) else tuple(side)) for side in (a, b))
    if not first.reports or not second.reports:
        raise DdpprofError("a job without a report cannot be compared. Give at least one report of each job.")
    return compare(first, second)


def medians_ns(report: Report) -> dict[str, int]:
    """Return all measures of one run in ns: means over the ranks, then medians over the steps."""
    changes = _metrics((report,), (report,), ())
    return {one.metric: one.a_ns for one in changes if one.a_ns is not None and one.metric != FASTEST_STEP}


def _kernels(a: RunSet, b: RunSet) -> tuple[tuple[KernelChange, ...], str | None]:
    """Compare the kernels of the typical runs. Also return a note on omitted kernels, or ``None``.

    With several runs, only kernels that differ between every run of A and every run of B are kept.
    """
    changes, why_not = compare_kernels(a.typical.kernels, b.typical.kernels)
    of_runs = [[{k.kernel: k.median_ns for k in report.kernels} for report in side.reports] for side in (a, b)]
    kept = []
    for change in changes:
        in_a, in_b = ([run[change.kernel] for run in runs if change.kernel in run] for runs in of_runs)
        if max(in_a) < min(in_b) or max(in_b) < min(in_a):
            kept.append(change)
    return tuple(kept), why_not


def _runs_needed(metrics: Sequence[MetricChange]) -> int | None:
    step = next((change for change in metrics if change.metric == "step"), None)
    if step is None or not step.a_ns or step.difference is None or step.difference.is_beyond_noise:
        return None
    limit_ns = NOTICEABLE * step.a_ns
    if max(step.difference.high_ns, -step.difference.low_ns) <= limit_ns:
        return None
    return step.runs_needed(limit_ns)


FASTEST_STEP = "fastest step"
"""name of the measure that varies least: other work on the machine disturbs some steps, but hardly ever the fastest one
"""
MEAN_STEP = "mean step"
"""name of the measure for the mean step of the whole run, including evaluations, checkpoints and recorded steps; the
median step excludes these
"""

_OF_PROFILED, _OF_LIGHT = (
    {name: one.value for name, one in metrics_of(kind).items()} for kind in (StepReport, LightStepReport)
)
METRICS = tuple(dict.fromkeys(("step", FASTEST_STEP, MEAN_STEP, *_OF_PROFILED, "wrapper", *_OF_LIGHT)))
"""names of all measures that are compared"""


def _metrics(a: Sequence[Report], b: Sequence[Report], asked: Sequence[str]) -> tuple[MetricChange, ...]:
    measures: dict[str, Callable[[Any], int | None]] = dict(_OF_LIGHT)
    steps_of: Callable[[Report], Sequence[Any]] = _light
    if all(map(_profiled, (*a, *b))):
        measures, steps_of = {**_OF_PROFILED, "wrapper": _wrapper((*a, *b))}, _profiled
    measures = {"step": measures["step"], FASTEST_STEP: measures["step"], MEAN_STEP: lambda _: None, **measures}
    sides = [
        [{name: _by_step(steps_of(run), value) for name, value in measures.items()} for run in side] for side in (a, b)
    ]
    are_timed = all(report.timed_steps_ns for report in (*a, *b))
    are_whole = are_timed and all(report.whole_run and report.whole_run.usual_step_ns for report in (*a, *b))
    for run, report in zip((*sides[0], *sides[1]), (*a, *b), strict=True):
        run[MEAN_STEP] = _mean_step(report)
        if are_timed:  # use the step times of the reports, which do not include the profiler's overhead
            run["step"] = run[FASTEST_STEP] = report.timed_steps_ns
        if are_whole and report.whole_run is not None:
            run["step"] = [float(one.median_ns) for one in report.whole_run.usual_stretches]
    known = [name for name in measures if all(any(run[name] for run in side) for side in sides)]
    num_asked = sum(name in asked for name in known)
    noise_ns = plausible_noise_ns([median(run["step"]) for side in sides for run in side if run["step"]] or [0.0])
    usual = {FASTEST_STEP: min, "step": fmean if steps_of is _profiled and not are_timed else median}
    changes = []
    for name in known:
        of_a, of_b = ([run[name] for run in side if run[name]] for side in sides)
        questions = num_asked if name in asked else len(known) - num_asked
        changes.append(_change(name, of_a, of_b, noise_ns, questions, usual.get(name, median)))
    return tuple(_of_reports(one, a, b, noise_ns) if are_whole and one.metric == "step" else one for one in changes)


def _of_reports(change: MetricChange, a: Sequence[Report], b: Sequence[Report], noise_ns: float) -> MetricChange:
    """Return the change with the step times of the reports, which are medians of whole runs."""
    runs_a, runs_b = ([report.step_ns or 0 for report in side] for side in (a, b))
    return replace(
        change,
        a_ns=round(median(runs_a)),
        b_ns=round(median(runs_b)),
        num_steps_a=sum(map(_num_steps, a)),
        num_steps_b=sum(map(_num_steps, b)),
        runs_a_ns=tuple(runs_a),
        runs_b_ns=tuple(runs_b),
        difference=difference_between(runs_a, runs_b, noise_ns, change.num_questions),
    )


def _num_steps(report: Report) -> int:
    """Return the number of steps on which the step time of the whole run is based."""
    steps = report.whole_run.steps if report.whole_run is not None else None
    return steps.num_usual if steps is not None else 0


def _mean_step(report: Report) -> list[float]:
    """Return a list with the mean step time of the whole run in ns; an empty list if the time is unknown."""
    steps = report.whole_run.steps if report.whole_run is not None else None
    return [] if steps is None else [float(steps.mean_ns)]


def _wrapper(reports: Sequence[Report]) -> Callable[[StepReport], int | None]:
    """Return a function that sums the parts of DDP's own work that are known in all runs.

    Traces that were not recorded by ddpprof lack some of these parts.
    """
    parts = [field.name for field in fields(WrapperCost)]
    known = [
        part
        for part in parts
        if all(any(getattr(step.wrapper, part) is not None for step in _profiled(report)) for report in reports)
    ]
    return lambda step: sum(getattr(step.wrapper, part) or 0 for part in known)


def _profiled(report: Report) -> list[StepReport]:
    """Return the steps over which the tables of the report average."""
    return [step for rank in report.ranks for step in report.averaged(rank)]


def _light(report: Report) -> list[LightStepReport]:
    return [step for rank in report.ranks for step in rank.light_steps]


def _by_step(steps: Iterable[_StepT], value: Callable[[_StepT], int | None]) -> list[float]:
    """Return one value per step: the mean over the ranks that have a value."""
    found: dict[int, list[int]] = {}
    for step in steps:
        measured = value(step)
        if measured is not None:
            found.setdefault(step.step, []).append(measured)
    return [mean(values) for values in found.values()]


def _change(
    name: str,
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    noise_ns: float,
    num_questions: int,
    usual: Callable[[Sequence[float]], float],
) -> MetricChange:
    """Compare one measure. `a`, `b`: values of the steps of each run, which `usual` reduces to one value per run."""
    runs_a, runs_b = ([usual(steps) for steps in side] for side in (a, b))
    return MetricChange(
        metric=name,
        a_ns=round(median(runs_a)),
        b_ns=round(median(runs_b)),
        num_steps_a=sum(map(len, a)),
        num_steps_b=sum(map(len, b)),
        runs_a_ns=tuple(map(round, runs_a)),
        runs_b_ns=tuple(map(round, runs_b)),
        difference=difference_between(runs_a, runs_b, noise_ns, num_questions),
        of_steps=shift_between(a[0], b[0]) if len(a) == len(b) == 1 and name not in (FASTEST_STEP, MEAN_STEP) else None,
        num_questions=num_questions,
    )


def _settings(a: Report, b: Report) -> list[SettingChange]:
    of_a, of_b = facts_of(a), facts_of(b)
    return [SettingChange(name, of_a.get(name, "-"), of_b.get(name, "-")) for name in differing_facts((a, b))]


def _buckets(a: Sequence[BucketRow], b: Sequence[BucketRow]) -> tuple[BucketChange, ...]:
    """Match the buckets of both jobs: in the order of `a`, followed by buckets that exist only in `b`."""
    left = {_bucket_key(bucket): bucket for bucket in b}
    changes = [BucketChange(bucket, left.pop(_bucket_key(bucket), None)) for bucket in a]
    return (*changes, *(BucketChange(None, bucket) for bucket in left.values()))


def _bucket_key(bucket: BucketRow) -> tuple[object, ...]:
    """Return a key made from the bucket's parameters or, if they are unknown, from its index and size."""
    if bucket.first_parameter is None:
        return (bucket.module, bucket.index, bucket.num_bytes)
    return (bucket.module, bucket.num_bytes, bucket.num_parameters, bucket.first_parameter, bucket.last_parameter)


_FEWEST_RUNS = 4


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel with the same name, launch shape and input shapes in both jobs."""

    a: KernelSummary
    b: KernelSummary

    @property
    def kernel(self) -> Kernel:
        return self.a.kernel

    @property
    def ratio(self) -> float | None:
        """Ratio of the median durations, B / A."""
        return self.b.median_ns / self.a.median_ns if self.a.median_ns else None

    @property
    def lost_ns_per_step(self) -> int:
        """Additional time per step in B, in ns: increase of the median duration × executions of the kernel per step."""
        return round((self.b.median_ns - self.a.median_ns) * self.b.runs_per_step)

    @property
    def is_beyond_noise(self) -> bool:
        noises = [_noise_ns(summary) for summary in (self.a, self.b)]
        known = [noise for noise in noises if noise is not None]
        return len(known) == len(noises) and abs(self.b.median_ns - self.a.median_ns) > sum(known)


def _noise_ns(summary: KernelSummary) -> float | None:
    if summary.num_runs < _FEWEST_RUNS or summary.spread is None:
        return None
    return 1.57 * summary.spread * summary.median_ns / sqrt(summary.num_runs)


def compare_kernels(
    a: Sequence[KernelSummary], b: Sequence[KernelSummary]
) -> tuple[tuple[KernelChange, ...], str | None]:
    """Return the kernels that became slower or faster by more than noise, largest increase in time first.

    Also return a message about kernels that occur in only one of the jobs, or ``None``.
    """
    in_b = {summary.kernel: summary for summary in b}
    changes = [KernelChange(summary, in_b[summary.kernel]) for summary in a if summary.kernel in in_b]
    changed = sorted((c for c in changes if c.is_beyond_noise), key=lambda c: -c.lost_ns_per_step)
    return tuple(changed), _unmatched(a, b, {change.kernel for change in changes})


def _unmatched(a: Sequence[KernelSummary], b: Sequence[KernelSummary], matched: set[Kernel]) -> str | None:
    only = [[summary for summary in summaries if summary.kernel not in matched] for summaries in (a, b)]
    if not a or not b or not any(only) or MOST_KERNELS in (len(a), len(b)):
        return None  # a kernel missing from a truncated list may still be in the run
    words = [f"{len(rows)} only in {run} ({_in_words(rows)})" for run, rows in zip("AB", only, strict=True) if rows]
    return f"kernels (name, launch shape and input shapes) found in only one of the runs: {', '.join(words)}"


def _in_words(summaries: Sequence[KernelSummary]) -> str:
    longest = max(summaries, key=lambda summary: summary.total_ns_per_step)
    total_ns = sum(summary.total_ns_per_step for summary in summaries)
    its_own = f"{kernel_name(longest.kernel)}, {in_ms(longest.total_ns_per_step)}"
    return f"{in_ms(total_ns)} per step; longest: {its_own}"
