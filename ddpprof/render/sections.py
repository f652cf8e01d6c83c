"""What a report says, in which order and in which words. Terminal and Markdown draw these sections; units are set here.

Times come as ns and leave as ms, sizes as bytes and leave as MB (10⁶ bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ddpprof.findings import Finding
from ddpprof.measures.bucket_table import BucketSummary
from ddpprof.measures.wrapper import WrapperCost
from ddpprof.report import RankReport, Report, StepReport

PARTS = ("forward", "backward", "exposed comm", "optimizer", "data, other", "idle")
"""Parts of the step bar, in order."""

RECORDED_PARTS = ("forward", "backward and comm", "optimizer", "data, other")
"""Parts where only light recording tells."""

_ABSENT = "-"
_MAX_BARS = 16
_MAX_BUCKETS = 24


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    is_warning: bool = False
    is_aside: bool = False
    """of less weight; stands apart"""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    parts_ns: tuple[int, ...]

    @property
    def total_ns(self) -> int:
        return sum(self.parts_ns)


@dataclass(frozen=True, slots=True)
class Bars:
    title: str
    parts: tuple[str, ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class FindingText:
    number: int
    title: str
    gain: str
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True)
class FindingList:
    title: str
    findings: tuple[FindingText, ...]
    otherwise: str


Section = Line | Bars | Table | FindingList


def ms(ns: float | None) -> str:
    return _ABSENT if ns is None else f"{ns / 1e6:.2f}"


def megabytes(num_bytes: int | None) -> str:
    return _ABSENT if num_bytes is None else f"{num_bytes / 1e6:.2f}"


def percent(fraction: float | None) -> str:
    return _ABSENT if fraction is None else f"{fraction:.0%}"


def clean(text: str, most: int = 200) -> str:
    """Names come from traces: no control characters, and not endless."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def sections(report: Report) -> tuple[Section, ...]:
    """Everything that is said about a run. Sections without content are left out."""
    makers: Sequence[Callable[[Report], Iterable[Section]]] = (
        _job,
        _missing,
        _step_bars,
        _overlap,
        _buckets,
        _wrapper,
        _recording_cost,
        _findings,
    )
    return tuple(section for make in makers for section in make(report))


def _median_of(steps: Sequence[StepReport], value: Callable[[StepReport], int | None]) -> int | None:
    known = [v for v in map(value, steps) if v is not None]
    return round(median(known)) if known else None


def _job(report: Report) -> Iterable[Section]:
    job = report.job
    read, world = job.num_ranks_read, job.world_size
    steps = max((len(rank.steps) for rank in report.ranks), default=0)
    light = max((len(rank.light_steps) for rank in report.ranks), default=0)
    words = [
        clean(" ".join(job.command)) or clean(job.name),
        _count(read, "rank") if world in (None, read) else f"{read} of {world} ranks",
        *([_count(len(job.hosts), "host")] if job.hosts else []),
        *(clean(word) for word in (job.backend, job.device) if word),
        *([f"torch {clean(job.torch)}"] if job.torch else []),
        _count(steps, "profiled step") if steps else f"{_count(light, 'step')} without the profiler",
    ]
    yield Line(" · ".join(words))
    for m in job.modules:
        hook = f", comm hook {clean(m.comm_hook)}" if m.comm_hook else ""
        buckets = f"{_count(m.num_parameters, 'parameter')}, {megabytes(m.parameter_bytes)} MB"
        yield Line(f"{clean(m.name)}: {buckets} in {_count(m.num_buckets, 'bucket')}{hook}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _missing(report: Report) -> Iterable[Section]:
    for text in report.missing:
        yield Line(f"Note: {clean(text, most=400)}", is_warning=True)


def _step_bars(report: Report) -> Iterable[Section]:
    number = _typical_step(report)
    bars = [bar for rank in report.ranks if (bar := _bar(rank, number)) is not None]
    if bars:
        yield from _drawn(f"One step, ms: step {number}, of median length among the profiled ones", PARTS, bars)
        return
    bars = [bar for rank in report.ranks if (bar := _recorded_bar(rank)) is not None]
    if bars:
        yield from _drawn("One step, ms: median of the lightly recorded ones", RECORDED_PARTS, bars)


def _drawn(title: str, parts: tuple[str, ...], bars: Sequence[Bar]) -> Iterable[Section]:
    shown = tuple(bars[:_MAX_BARS])
    yield Bars(title, parts, shown)
    more = f"{len(bars) - _MAX_BARS} more ranks are in the JSON report" if len(bars) > _MAX_BARS else ""
    rows = tuple((bar.label, *map(ms, bar.parts_ns), ms(bar.total_ns)) for bar in shown)
    yield Table("", (Column("rank"), *map(Column, parts), Column("step")), rows, more)


def _typical_step(report: Report) -> int | None:
    """The number of the profiled step of median length, by the rank that was slowest in it: one step for all ranks."""
    longest: dict[int, int] = {}
    for rank in report.ranks:
        for step in rank.steps:
            longest[step.step] = max(longest.get(step.step, 0), step.duration_ns)
    in_order = sorted(longest, key=lambda number: longest[number])
    return in_order[(len(in_order) - 1) // 2] if in_order else None


def _bar(rank: RankReport, number: int | None) -> Bar | None:
    parts = next((step.parts for step in rank.steps if step.step == number), None)
    if parts is None:
        return None
    other = parts.data_ns + parts.other_ns
    shown = (parts.forward_ns, parts.backward_ns, parts.exposed_comm_ns, parts.optimizer_ns, other, parts.idle_ns)
    return Bar(str(rank.rank), shown)


def _recorded_bar(rank: RankReport) -> Bar | None:
    parts = [step.parts for step in rank.light_steps if step.parts is not None]
    if not parts:
        return None
    columns: list[list[int]] = [
        [p.forward_ns for p in parts],
        [p.backward_and_comm_ns for p in parts],
        [p.optimizer_ns for p in parts],
        [p.data_ns + p.other_ns for p in parts],
    ]
    return Bar(str(rank.rank), tuple(round(median(column)) for column in columns))


def _overlap(report: Report) -> Iterable[Section]:
    rows = []
    for rank in report.ranks:
        steps = rank.steps
        if not steps:
            continue
        talks = any(s.num_comm_kernels for s in steps)
        hidden = [s.overlap_ns / s.comm_ns for s in steps if s.comm_ns]
        rows.append(
            (
                str(rank.rank),
                ms(_median_of(steps, lambda s: s.compute_ns)),
                ms(_median_of(steps, lambda s: s.comm_ns) if talks else None),
                percent(median(hidden) if hidden else None),
                ms(_median_of(steps, lambda s: s.exposed_ns) if talks else None),
                ms(_median_of(steps, lambda s: s.trailing_ns) if talks else None),
            )
        )
    if rows:
        names = ("rank", "compute", "comm", "hidden", "exposed", "trailing")
        more = f"{len(rows) - _MAX_BARS} more ranks are in the JSON report. " if len(rows) > _MAX_BARS else ""
        yield Table(
            "Communication and computation, ms per step (medians)",
            tuple(map(Column, names)),
            tuple(rows[:_MAX_BARS]),
            f"{more}hidden: share of comm while compute runs; exposed: the rest; trailing: gradients still on their "
            "way between the last backward op and the optimizer",
        )


def _buckets(report: Report) -> Iterable[Section]:
    if not report.buckets:
        return
    rows = []
    for b in report.buckets:
        late = _ABSENT if b.late_rank is None else f"rank {b.late_rank} +{ms(b.late_by_ns)}"
        rows.append(
            (
                _bucket_name(report, b),
                megabytes(b.num_bytes),
                str(b.num_parameters),
                ms(b.ready_ns),
                ms(b.launched_ns),
                ms(b.started_ns),
                ms(b.finished_ns),
                late,
            )
        )
    names = ("bucket", "MB", "params", "ready", "launched", "started", "finished", "late")
    yield Table(
        "Gradient buckets, ms after the end of the forward (medians)",
        tuple(Column(name, name != "late") for name in names),
        tuple(rows[:_MAX_BUCKETS]),
        "ready: all its gradients are there; late: the rank that launches it last in most steps, and how long after "
        "the first",
    )
    yield Table(
        "",
        (
            Column("bucket"),
            *(Column(name, False) for name in ("first parameter", "last parameter", "slowest gradient")),
        ),
        tuple(
            (
                _bucket_name(report, b),
                clean(b.first_parameter),
                clean(b.last_parameter),
                _ABSENT if b.slowest_parameter is None else clean(b.slowest_parameter),
            )
            for b in report.buckets[:_MAX_BUCKETS]
        ),
        f"{len(rows) - _MAX_BUCKETS} more buckets are in the JSON report" if len(rows) > _MAX_BUCKETS else "",
    )


def _bucket_name(report: Report, bucket: BucketSummary) -> str:
    return str(bucket.index) if len(report.job.modules) == 1 else f"{bucket.module}/{bucket.index}"


_WRAPPER_PARTS: tuple[tuple[str, Callable[[WrapperCost], int | None]], ...] = (
    ("pre-forward", lambda w: w.pre_forward_ns),
    ("unused search", lambda w: w.unused_search_ns),
    ("copy in", lambda w: w.copy_in_ns),
    ("launch", lambda w: w.launch_ns),
    ("copy out", lambda w: w.copy_out_ns),
    ("finalise", lambda w: w.finalise_ns),
    ("total", lambda w: w.total_ns),
)


def _wrapper(report: Report) -> Iterable[Section]:
    rows = []
    for rank in report.ranks:
        if not rank.steps or not report.job.modules:
            continue
        values = [_median_of(rank.steps, lambda s, part=part: part(s.wrapper)) for _, part in _WRAPPER_PARTS]  # type: ignore[misc]
        share = [s.wrapper.total_ns / s.duration_ns for s in rank.steps if s.duration_ns]
        rows.append((str(rank.rank), *map(ms, values), percent(median(share) if share else None)))
    if rows:
        names = ("rank", *(name for name, _ in _WRAPPER_PARTS), "of step")
        yield Table(
            "DDP's own work on the training thread, ms per step (medians)",
            tuple(map(Column, names)),
            tuple(rows[:_MAX_BARS]),
            "pre-forward: buffer sync and bookkeeping; copy in: gradients into buckets; copy out: buckets into .grad; "
            "waiting for communication is left out",
        )


def _recording_cost(report: Report) -> Iterable[Section]:
    costs = [(rank.rank, rank.recording_cost) for rank in report.ranks if rank.recording_cost is not None]
    slowest = max(costs, key=lambda c: c[1].off_ns or 0, default=None)
    if slowest is None:
        return
    _, cost = slowest
    words = []
    if cost.light_ratio is not None and cost.spread is not None:
        words.append(
            f"a lightly recorded step takes {cost.light_ratio:.3f} × one with recording off "
            f"({_count(cost.num_pairs, 'pair')} of steps{_noise(cost.light_ratio, cost.spread)})"
        )
    if cost.profiled_ratio is not None:
        words.append(
            f"a profiled step {cost.profiled_ratio:.2f} × ({ms(cost.profiled_ns)} to {ms(cost.off_ns)} ms"
            f"{_noise(cost.profiled_ratio, cost.spread)})"
        )
    if cost.profiler_pause_ns is not None:
        words.append(f"the profiler's start and end stopped training once, for {ms(cost.profiler_pause_ns)} ms")
    if words:
        yield Line(f"ddpprof's own cost: {'; '.join(words)}.", is_aside=True)


def _noise(ratio: float, spread: float | None) -> str:
    within = spread is not None and abs(ratio - 1) < spread
    return f", within the {spread:.0%} by which the latter differ" if within else ""


def _findings(report: Report) -> Iterable[Section]:
    texts = tuple(
        FindingText(
            number,
            clean(f.title),
            _gain(f),
            clean(f.evidence, most=800),
            clean(f.advice, most=800),
        )
        for number, f in enumerate(report.findings, 1)
    )
    profiled = any(rank.steps for rank in report.ranks)
    otherwise = _NOT_RECORDED if not report.job.modules else _NOTHING if profiled else _NOT_PROFILED
    yield FindingList("Findings", texts, otherwise)


_NOTHING = "Nothing to gain: no rule found more than 1% of the step to recover."
_NOT_PROFILED = (
    "None from light recording: how much communication nothing hides, and most rules with it, needs profiled steps. "
    "Record them with: ddpprof trace train.py"
)
_NOT_RECORDED = (
    "None from these traces: most rules need what only ddpprof records (buckets, parameters, data loaders). "
    "Record it with: ddpprof trace train.py"
)


def _gain(finding: Finding) -> str:
    if finding.gain_ns is not None:
        return f"up to {ms(finding.gain_ns)} ms per step"
    return "correctness" if finding.is_correctness else "gain not measured"
