"""What a report says, in which order and in which words. Terminal and Markdown draw these sections; units are set here.

Times come as ns and leave as ms, sizes as bytes and leave as MB (10⁶ bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

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


def clean(text: str) -> str:
    """Names come from traces: no control characters, and not endless."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= 200 else f"{shown[:199]}…"


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
    ranks = f"{job.num_ranks_read} of {job.world_size}" if job.world_size != job.num_ranks_read else f"{job.world_size}"
    steps = max((len(rank.steps) for rank in report.ranks), default=0)
    light = max((len(rank.light_steps) for rank in report.ranks), default=0)
    words = [
        clean(" ".join(job.command)) or clean(job.name),
        f"{ranks} rank{'s' if ranks != '1' else ''}",
        *([f"{len(job.hosts)} host{'s' if len(job.hosts) > 1 else ''}"] if job.hosts else []),
        *(clean(word) for word in (job.backend, job.device) if word),
        *([f"torch {clean(job.torch)}"] if job.torch else []),
        f"{steps} profiled steps" if steps else f"{light} steps without the profiler",
    ]
    words += [
        f"{clean(m.name)}: {m.num_parameters} parameters, {megabytes(m.parameter_bytes)} MB in {m.num_buckets} buckets"
        + (f", comm hook {clean(m.comm_hook)}" if m.comm_hook else "")
        for m in job.modules
    ]
    yield Line(" · ".join(words))


def _missing(report: Report) -> Iterable[Section]:
    for text in report.missing:
        yield Line(f"Missing: {clean(text)}")


def _step_bars(report: Report) -> Iterable[Section]:
    number = _typical_step(report)
    bars = [bar for rank in report.ranks if (bar := _bar(rank, number)) is not None]
    if bars:
        yield from _drawn(f"Step {number}, of median length among the profiled steps, ms", PARTS, bars)
        return
    bars = [bar for rank in report.ranks if (bar := _recorded_bar(rank)) is not None]
    if bars:
        yield from _drawn("Step, median over the lightly recorded steps, ms", RECORDED_PARTS, bars)


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
    columns = [
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
        comm = _median_of(steps, lambda s: s.comm_ns)
        hidden = [s.overlap_ns / s.comm_ns for s in steps if s.comm_ns]
        rows.append(
            (
                str(rank.rank),
                ms(_median_of(steps, lambda s: s.compute_ns)),
                ms(comm),
                percent(median(hidden) if hidden else None),
                ms(_median_of(steps, lambda s: s.exposed_ns)),
                ms(_median_of(steps, lambda s: s.trailing_ns)),
            )
        )
    if rows:
        names = ("rank", "compute", "comm", "hidden", "exposed", "trailing")
        more = f"{len(rows) - _MAX_BARS} more ranks are in the JSON report. " if len(rows) > _MAX_BARS else ""
        yield Table(
            "Communication behind computation, median per step, ms",
            tuple(map(Column, names)),
            tuple(rows[:_MAX_BARS]),
            f"{more}hidden: part of the communication under computation; exposed: the rest; trailing: gradient "
            "communication after the last backward op, before the optimizer",
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
        "Gradient buckets, median, ms after the end of the DDP forward",
        tuple(Column(name, name != "late") for name in names),
        tuple(rows[:_MAX_BUCKETS]),
        "late: the rank that launched the bucket last in most steps, and how long after the first",
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
        share = [s.wrapper.total_ns / s.duration_ns for s in rank.steps]
        rows.append((str(rank.rank), *map(ms, values), percent(median(share))))
    if rows:
        names = ("rank", *(name for name, _ in _WRAPPER_PARTS), "of step")
        yield Table(
            "DDP's own work on the training thread, median per step, ms",
            tuple(map(Column, names)),
            tuple(rows[:_MAX_BARS]),
            "copy in: gradients into buckets; copy out: buckets into .grad; waiting for communication is not in it",
        )


def _recording_cost(report: Report) -> Iterable[Section]:
    costs = [(rank.rank, rank.recording_cost) for rank in report.ranks if rank.recording_cost is not None]
    slowest = max(costs, key=lambda c: c[1].off_ns or 0, default=None)
    if slowest is None:
        return
    _, cost = slowest
    words = []
    if cost.light_ratio is not None and cost.spread is not None:
        noise = " (within noise)" if abs(cost.light_ratio - 1) < cost.spread else ""
        words.append(
            f"light recording {cost.light_ratio:.3f} × the step{noise}, {cost.num_pairs} pairs of steps that differ "
            f"among themselves by up to {cost.spread:.0%}"
        )
    if cost.profiled_ratio is not None:
        words.append(f"profiled steps {cost.profiled_ratio:.2f} × ({ms(cost.profiled_ns)} to {ms(cost.off_ns)} ms)")
    if cost.profiler_pause_ns is not None:
        words.append(
            f"starting the profiler and writing the trace paused training once for {ms(cost.profiler_pause_ns)} ms"
        )
    if words:
        yield Line(f"ddpprof's own cost: {'; '.join(words)}.")


def _findings(report: Report) -> Iterable[Section]:
    texts = tuple(
        FindingText(
            number,
            clean(f.title),
            "correctness or unknown gain" if f.gain_ns is None else f"up to {ms(f.gain_ns)} ms per step",
            clean(f.evidence) if len(f.evidence) <= 200 else "".join(c for c in f.evidence if c.isprintable()),
            f.advice,
        )
        for number, f in enumerate(report.findings, 1)
    )
    yield FindingList("Findings", texts, "Nothing to gain: no rule found more than 1 % of the step to recover.")
