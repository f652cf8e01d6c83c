"""Sections of the reports of experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isinf

from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.results import ExperimentReport
from ddpprof.experiments.scaling import ScalePoint, Scaling, ScalingReport
from ddpprof.experiments.sweep import SweepCrossover, SweepPoint, SweepReport
from ddpprof.experiments.trials import LossMatch, Match
from ddpprof.experiments.trying import Promise, TriedPromise, TryReport
from ddpprof.experiments.tuning import Fate, TriedSetting, TuneReport
from ddpprof.layout import (
    ABSENT,
    Column,
    Line,
    Section,
    Table,
    clean,
    columns,
    count,
    in_ms,
    ms,
    notes,
    percent,
    range_in_ms,
    table_of,
    three_digits,
)
from ddpprof.model.json_files import Outcome
from ddpprof.render.sections.job import machine_words
from ddpprof.render.sections.overview import measured_gain
from ddpprof.statistics.paired_ratio import Ratio


def experiment_sections(report: ExperimentReport) -> tuple[Section, ...]:
    return (*_head(report), *_body(report))


def _head(report: ExperimentReport) -> Iterable[Section]:
    words = [clean(" ".join(report.command)), *(machine_words(report.job) if report.job is not None else [])]
    if any(words):
        yield Line(" · ".join(filter(None, words)))
    for text in report.missing:
        yield Line(f"Note: {clean(text, most=400)}", is_warning=True)


def _body(report: ExperimentReport) -> Iterable[Section]:
    if isinstance(report, OverheadReport):
        return overhead_sections(report)
    if isinstance(report, TuneReport):
        return tuning_sections(report)
    if isinstance(report, TryReport):
        return trying_sections(report)
    return scaling_sections(report) if isinstance(report, ScalingReport) else sweep_sections(report)


def overhead_sections(report: OverheadReport) -> Iterable[Section]:
    yield Line(_verdict(report))
    yield from _at_best(report)
    yield _parts(report)
    yield Table(
        "Rounds: median step, ms",
        columns("round", "with DDP", "without", "ratio", "pairs"),
        tuple(
            (str(number), ms(one.with_ns), ms(one.without_ns), f"{one.ratio:.3f}", str(one.num_pairs))
            for number, one in enumerate(report.rounds, 1)
        ),
        "pair: a block of steps with DDP and a block without DDP in the same job or, with --apart, a job with DDP and "
        "a job without DDP; ratio: median over the pairs",
    )


def _verdict(report: OverheadReport) -> str:
    ratio = report.ratio
    world = report.job.world_size or 1
    on = "on one rank" if world == 1 else f"on {world} ranks, communication included"
    pairs = count(ratio.num_pairs, "pair")
    times = f"{in_ms(report.with_ns)} with DDP, {in_ms(report.without_ns)} without"
    if ratio.is_beyond_noise:
        return f"With DDP a step takes {interval(ratio)} × as long as without it, {on}: {times}."
    if ratio.low is None or ratio.high is None or ratio.high - ratio.low > _VAGUE:
        few = "is not enough" if ratio.num_pairs == 1 else "are not enough"
        return (
            f"{pairs} {few} to tell whether DDP makes a step longer, {on}: {interval(ratio)} × ({times}). Run more "
            f"rounds: --rounds"
        )
    return (
        f"With DDP a step takes as long as without it, within the precision of {pairs}, {on}. The ratio is "
        f"{interval(ratio)} ({times})."
    )


def _at_best(report: OverheadReport) -> Iterable[Section]:
    """Yield a line with the shortest step that this link allows, and with the samples per second."""
    said = []
    if report.least_ns is not None and (report.job.world_size or 1) > 1:
        transfer, least = ms(report.transfer_ns), report.least_ns / report.without_ns
        said.append(
            f"With DDP, a step takes at least {least:.3f} × as long as without it, because its communication alone "
            f"takes {transfer} ms."
        )
    if report.num_samples is not None:
        with_ddp, without = (report.num_samples / ns * 1e9 for ns in (report.with_ns, report.without_ns))
        said.append(f"{with_ddp:.0f} samples/s with DDP, {without:.0f} without.")
    if said:
        yield Line(" ".join(said))


_VAGUE = 0.1
"""a ratio is inconclusive if its interval is wider than this"""


def interval(ratio: Ratio) -> str:
    """Return the ratio, with its interval if the interval is known and narrow enough to be useful."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.3f}"
    if ratio.is_vague:
        return f"{ratio.ratio:.2f} (trials vary too much to tell)"
    return f"{ratio.ratio:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"


def _parts(report: OverheadReport) -> Section:
    rows = [("measured: step with DDP minus step without DDP", ms(report.overhead_ns), _range(report))]
    wrapper, parts = report.wrapper, report.parts
    if wrapper is not None:
        rows += [
            ("  pre-forward: buffer sync, bookkeeping", ms(wrapper.pre_forward_ns), ""),
            ("  search for unused parameters", ms(wrapper.unused_search_ns), ""),
            ("  copying gradients into buckets", ms(wrapper.copy_in_ns), ""),
            ("  passing all-reduces to the backend", ms(wrapper.launch_ns), ""),
            ("  copying buckets into .grad", ms(wrapper.copy_out_ns), ""),
            ("  finalization", ms(wrapper.finalise_ns), ""),
        ]
    explained = report.explained_ns
    if parts is not None and explained is not None:
        rows += [
            ("  exposed communication", ms(parts.transfer_ns + parts.waiting_ns), ""),
            ("sum of these parts", ms(explained), ""),
            ("not explained", ms(report.overhead_ns - explained), ""),
        ]
    on_device = wrapper is not None and explained is None
    return Table(
        "Parts of the overhead, ms per step",
        columns("", "ms", "95 % interval", words=("",)),
        tuple(rows),
        notes(
            "measured: (ratio - 1) × step without DDP; parts are from profiled steps, scaled to the duration of "
            "unprofiled steps",
            "parts are measured on the host, and may overlap with work on the device, so they may not add up"
            if on_device
            else "",
        ),
    )


def _range(report: OverheadReport) -> str:
    low, high = report.ratio.low, report.ratio.high
    if low is None or high is None:
        return ""
    return (
        "" if report.ratio.is_vague else f"{ms((low - 1) * report.without_ns)} – {ms((high - 1) * report.without_ns)}"
    )


_TITLES = {
    Scaling.WEAK: "Weak scaling: fixed batch size per process",
    Scaling.STRONG: "Strong scaling: fixed total batch size",
}
PARTS = (
    ("DDP's own work", "wrapper_ns"),
    ("exposed transfer", "transfer_ns"),
    ("waiting for ranks", "waiting_ns"),
    ("slowed by comm", "slowdown_ns"),
    ("data", "data_ns"),
    ("slower compute", "compute_ns"),
)


_PERFECT = 1.005
"""if the efficiency is above this value, a note explains how it can exceed 100 %"""


def _is_it_normal(point: ScalePoint) -> str:
    """Return sentences about the measured speed-up, and about the maximum speed-up that the link allows."""
    gained = f"{point.nproc} processes train {point.speedup.ratio:.2f} times as fast as one process without DDP"
    most = point.most_speedup
    if most is None or point.transfer_ns is None:
        return f"{gained}."
    why = f"a step's communication takes {in_ms(point.transfer_ns)}, and its computation {in_ms(point.ideal_ns)}"
    return f"{gained}. The maximum speed-up is {most:.2f}: {why}."


def scaling_sections(report: ScalingReport) -> Iterable[Section]:
    largest = max((point for point in report.points if point.nproc > 1), key=lambda point: point.nproc, default=None)
    if largest is not None:
        yield Line(_is_it_normal(largest), is_headline=True)
    for scaling, title in _TITLES.items():
        points = [point for point in report.points if point.scaling is scaling]
        if points:
            unsure = any(point.speedup.low is None for point in points)
            note = "an interval needs at least three rounds" if unsure else ""
            yield table_of(title, points, _CELLS, note=note)
            yield _losses(points)
    if any(point.efficiency > _PERFECT for point in report.points):
        yield Line(
            "Efficiency above 100% means that each of several processes does more work per second than one process "
            "without DDP. Either the single process was slowed in its trials, by other work or by more threads than "
            "cores, or the difference is due to chance. If it is due to chance, the interval of the speed-up includes "
            "the number of processes."
        )
    yield Line(
        "speed-up: work per second relative to one process without DDP; best: the maximum speed-up on this link, if "
        "computation hides as much communication as possible; lost: the step minus the ideal step; slower compute: due "
        "to shared cores and memory, or smaller batches; slowed by comm: only kernels that ran both with and without "
        "communication.",
        is_aside=True,
    )


_CELLS: Mapping[str, Callable[[ScalePoint], str]] = {
    "processes": lambda point: str(point.nproc),
    "step ms": lambda point: ms(point.step_ns),
    "ideal ms": lambda point: ms(point.ideal_ns),
    "speed-up": lambda point: f"{point.speedup.ratio:.2f}",
    "95 % interval": lambda point: _interval(point.speedup),
    "best": lambda point: "" if point.most_speedup is None else f"{point.most_speedup:.2f}",
    "efficiency": lambda point: percent(point.efficiency),
    "samples/s": lambda point: "" if point.samples_per_s is None else f"{point.samples_per_s:.0f}",
}


def _interval(ratio: Ratio) -> str:
    if ratio.is_vague:
        return "varies too much"
    return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.2f}–{ratio.high:.2f}"


def _losses(points: Iterable[ScalePoint]) -> Section:
    rows = []
    for point in points:
        parts = [ms(getattr(point.lost, field)) if point.lost is not None else ms(None) for _, field in PARTS]
        rows.append((str(point.nproc), *parts, ms(point.lost_ns)))
    names = columns("processes", *(name for name, _ in PARTS), "lost")
    return Table("Causes of lost time, ms per step", names, tuple(rows))


def sweep_sections(report: SweepReport) -> Iterable[Section]:
    yield _points(report)
    models = [(curve.configuration, curve.model) for curve in report.curves if curve.model is not None]
    if models:
        yield Table(
            f"Model: constant + slope × {_size_name(report)}",
            columns("configuration", "constant ms", "slope ms", "never below ms", "error", words=("configuration",)),
            tuple(
                (clean(name), ms(m.constant_ns), f"{m.slope_ns / 1e6:.4g}", ms(m.floor_ns), f"{m.relative_error:.1%}")
                for name, m in models
            ),
            "error: root mean square error of the fitted model, relative to the measured time",
        )
    for found in report.crossovers:
        yield Line(_crossover(report, found))
    if not report.crossovers and len(models) > 1:
        yield Line("According to these fitted models, one configuration is fastest at every size.")
    if not models and len(report.points) > 1:
        yield Line(_fastest(report.points))


def _fastest(points: Sequence[SweepPoint]) -> str:
    """Return a sentence that compares the fastest variant with the first variant, for the same amount of work."""
    unequal = len({point.size for point in points}) > 1
    if unequal:
        points = [_for_as_much_work(point, points[0]) for point in points]
    first, work = _name(points[0], points), " for the same work" if unequal else ""
    compared = [(point, point.ratio) for point in points[1:] if point.ratio is not None]
    beyond = [(point, ratio) for point, ratio in compared if ratio.is_beyond_noise]
    if not any(ratio.is_beyond_noise is not None for _, ratio in compared):
        fastest = min(points, key=lambda point: point.step_ns)
        of_what = f" for the amount of work in one step of {first}" if unequal else ""
        return (
            f"Lowest median{work}: {_name(fastest, points)}, {in_ms(fastest.step_ns)}{of_what}. This may be due to "
            "chance: at least three rounds are needed to tell."
        )
    faster = [(ratio, point) for point, ratio in beyond if ratio.ratio < 1]
    if faster:
        ratio, fastest = min(faster, key=lambda one: one[0].ratio)
        return f"Fastest: {_name(fastest, points)}: {interval(ratio)} × the time of {first}{work}."
    if len(beyond) == len(points) - 1:
        return f"Fastest: {first}. All other configurations are slower{work} by more than the noise."
    shown = max(ratio.high / ratio.ratio - 1 for _, ratio in compared if ratio.high is not None)
    rounds = count(len(points[0].rounds_ns), "round")
    return (
        f"No configuration is faster than {first}{work} by more than noise. {rounds} can detect a difference of "
        f"{shown:.0%}; more rounds can detect a smaller difference."
    )


def _for_as_much_work(point: SweepPoint, first: SweepPoint) -> SweepPoint:
    """Return the variant with its times scaled to the work per step of the first variant."""
    if point.size is None or first.size is None:
        return point
    share, ratio = first.size / point.size, point.ratio
    if ratio is not None:
        low, high = (None if end is None else end * share for end in (ratio.low, ratio.high))
        ratio = replace(ratio, ratio=ratio.ratio * share, low=low, high=high)
    return replace(point, step_ns=point.step_ns * share, ratio=ratio)


def _name(point: SweepPoint, points: Sequence[SweepPoint]) -> str:
    has_others = any(one.configuration != point.configuration for one in points)
    return f"{clean(point.label)}, {clean(point.configuration)}" if has_others else clean(point.label)


def _size_name(report: SweepReport) -> str:
    name = clean(report.varied.lstrip("-"))
    return f"{name} of all processes" if any(point.nproc > 1 for point in report.points) else name


def _points(report: SweepReport) -> Section:
    """Return a table with a row for each label, and columns for each configuration."""
    configurations = list(dict.fromkeys(point.configuration for point in report.points))
    has_sizes = any(point.size is not None for point in report.points)
    cells = {(point.label, point.configuration): point for point in report.points}
    has_ratios = len(configurations) == 1 and any(point.ratio is not None for point in report.points)
    heads = [Column(clean(report.varied.lstrip("-")), is_number=False)]
    for name in configurations:
        heads += [Column(f"{clean(name)}: ms"), *([Column("per s")] if has_sizes else [])]
    rows = []
    for label in dict.fromkeys(point.label for point in report.points):
        row = [clean(label.removeprefix(f"{report.varied}="))]
        for name in configurations:
            row += _cells(cells.get((label, name)), has_sizes)
        ratio = cells[label, configurations[0]].ratio if has_ratios else None
        rows.append((*row, *([ABSENT if ratio is None else interval(ratio)] if has_ratios else [])))
    rate = f"per s: {_size_name(report)}, divided by the step time" if has_sizes else ""
    if has_ratios:
        heads.append(Column("× the first"))
    ratios = "× the first: time relative to the first row, with simultaneous 95 % intervals" if has_ratios else ""
    return Table("Median step", tuple(heads), tuple(rows), notes(rate, ratios))


def _cells(point: SweepPoint | None, has_sizes: bool) -> list[str]:
    rate = ABSENT if point is None or point.per_second is None else three_digits(point.per_second)
    return [ms(None if point is None else point.step_ns), *([rate] if has_sizes else [])]


def _crossover(report: SweepReport, found: SweepCrossover) -> str:
    c = found.crossover
    low = "0" if c.low is None else three_digits(c.low)
    high = "unbounded" if c.high is None else three_digits(c.high)
    if not found.is_measured or c.low is None or c.high is None:
        return (
            f"These sizes do not show whether {clean(found.above)} becomes faster than {clean(found.below)}: the "
            f"fitted models cross at {_size_name(report)} {three_digits(c.size)} (95% interval {low} to {high})."
        )
    grows = ""
    if c.slope_ratio is not None:
        grows = f" Its step time also grows more slowly with the size, by a factor of {c.slope_ratio:.2f}."
    return (
        f"Above {_size_name(report)} {three_digits(c.size)} (95% interval {low} to {high}), the configuration "
        f"{clean(found.above)} is faster than {clean(found.below)}.{grows}"
    )


_LOSSES = {Match.EXACT: "same", Match.ROUNDING: "rounding", Match.CHANGED: "change", Match.UNKNOWN: "?"}
_FATES = {Fate.TRIED: "", Fate.LOSING: "slower", Fate.REFUSED: "refused", Fate.FAILED: "failed"}


_SHORT = {"gradient_as_bucket_view=True": "view", "static_graph=True": "static"}


def tuning_sections(report: TuneReport) -> Iterable[Section]:
    yield from _tuned_verdict(report)
    yield _trials(report)
    yield from _tuned_losses(report)
    if report.unpredicted is not None:
        yield Line(
            f"There was no prediction, so a variety of settings was tried: {clean(report.unpredicted, most=400)}"
        )
    elif not report.promises:
        yield Line("No setting was predicted to be faster; the setting with the best prediction was tried anyway.")
    yield Line(
        f"Tuning took {count(report.num_steps, 'step')} of training. Trying all {report.num_distinct} distinct "
        f"settings equally often would take {report.exhaustive_steps:,} steps.",
        is_aside=True,
    )


def _tuned_verdict(report: TuneReport) -> Iterable[Section]:
    now = report.now
    if report.best is None:
        yield Line(_nothing(report))
        return
    best = report.tried[report.best]
    assert best.ratio is not None
    yield Line(
        f"Best: {clean(best.label)}: {in_ms(best.step_ns)} per step, {interval(best.ratio)} × the {in_ms(now.step_ns)} "
        f"of the unchanged job{_predicted(best)}."
    )
    yield Line(f"In the script: {clean(best.code, most=800)}")
    if best.is_lossy:
        yield Line(
            "It is lossy, because it rounds gradients before sending them: check the final accuracy.", is_warning=True
        )
    if best.losses is not None and best.losses.match is Match.UNKNOWN:
        yield Line("It is unknown whether this setting changes the losses: compare them.", is_warning=True)
    if "static_graph=True" in best.label:
        yield Line(
            "static_graph=True requires every step to use the same parameters, as these steps did.", is_warning=True
        )


def _nothing(report: TuneReport) -> str:
    """Return a sentence for a `tune` run that found no faster setting: whether one may exist, and what to do."""
    known = [one for one in report.tried if one.ratio is not None and one.fate is Fate.TRIED]
    now = f"the unchanged job ({in_ms(report.now.step_ns)} per step)"
    if not known:
        return f"No setting is faster than {now}. Change nothing."
    closest = min(known, key=lambda one: one.ratio.ratio if one.ratio is not None else 0.0)
    assert closest.ratio is not None
    rounds = count(closest.ratio.num_pairs, "round")
    low, label = closest.ratio.low, clean(closest.label)
    of_chance = label if closest.ratio.is_vague else f"{label}, {interval(closest.ratio)} × the time"
    if low is not None and low > _CERTAIN:
        return (
            f"No setting is faster than {now}: {rounds} are enough to detect a gain of {1 - _CERTAIN:.0%}. Change "
            f"nothing."
        )
    varied = (
        f"step times on this machine varied by {report.start_ratio:.2g}× between runs of the same setting"
        if report.start_ratio is not None and report.start_ratio > _STEADY
        else f"{rounds} do not show how much of the difference is due to chance"
        if low is None
        else f"{rounds} are too few for such a small difference"
    )
    return (
        f"Cannot tell whether a setting is faster than {now}: {varied}. Closest: {of_chance}. Change nothing yet: "
        f"run again while the machine is idle, or with --rounds {max(_ENOUGH, 3 * report.rounds)}."
    )


_CERTAIN = 0.9
"""a message says that no setting is faster only if every interval excludes step times below this fraction of the
unchanged job's step time
"""
_STEADY = 1.1
"""step times are said to vary if steps in a setting's slowest run took more than this many times as long as in its
fastest run
"""
_ENOUGH = 10
"""smallest number of rounds that a message recommends"""


def _predicted(tried: TriedSetting) -> str:
    return f"; the prediction was {in_ms(tried.forecast.step_ns)}" if tried.forecast is not None else ""


def _trials(report: TuneReport) -> Section:
    return table_of(
        "Tried",
        (report.now, *report.tried),
        {
            "setting": lambda one: short_label(one.label) or "unchanged",
            "step ms": lambda one: ms(one.step_ns),
            "ratio": lambda one: interval(one.ratio) if one.ratio is not None else ABSENT,
            "predicted": lambda one: ms(one.forecast.step_ns if one.forecast is not None else None),
            "losses": lambda one: ABSENT if one.losses is None else _LOSSES[one.losses.match],
            "result": lambda one: _FATES[one.fate],
        },
        ("setting", "losses", "result"),
        notes(
            "ratio: step time / step time of the unchanged job; simultaneous 95 % intervals",
            "predicted: step time in ms, from the profile" if report.unpredicted is None else "",
            *(f"{short}: {name}" for name, short in _SHORT.items() if any(name in one.label for one in report.tried)),
        ),
    )


def short_label(label: str) -> str:
    """Return the label of a setting in a short form."""
    for name, short in _SHORT.items():
        label = label.replace(name, short)
    return clean(label)


def _tuned_losses(report: TuneReport) -> Iterable[Section]:
    known = [one.losses for one in report.tried if one.losses is not None]
    compared = [one for one in known if one.num_steps]
    if not compared:
        yield Line(
            "No loss was recorded (backward() was never called on a scalar), so it is unknown whether the "
            "settings change the losses."
        )
        return
    yield Line(_compared(compared[0]))
    for one in report.tried:
        if one.losses is not None and one.losses.match is Match.CHANGED:
            yield Line(f"{clean(one.label)} changes losses by up to {_part(one.losses.difference)}.", is_warning=True)


def _compared(first: LossMatch) -> str:
    said = (
        f"Losses of {count(first.num_steps, 'step')} on every rank were compared with the losses of the unchanged job"
    )
    if first.own is None:
        return f"{said}, which was run only once."
    if first.own == 0:
        said += "; two runs of the unchanged job match bit for bit"
    else:
        said += f"; runs of the unchanged job differ by {_part(first.own)}"
    if first.tolerance is None:
        return f"{said}, which is too much for a comparison. Set a seed in the script."
    if first.tolerance:
        return f"{said}; {_part(first.tolerance)} is allowed."
    return f"{said}, so the losses with every setting must match as well."


def _part(fraction: float | None) -> str:
    return "any amount" if fraction is None or isinf(fraction) else f"{fraction:.2g} of the loss"


def trying_sections(report: TryReport) -> Iterable[Section]:
    """Return sections with the time that each change saved, and the code of the changes that help."""
    takes = (
        "On average, a step of the unchanged job takes" if report.uses_means else "A step of the unchanged job takes"
    )
    yield Line(f"{takes} {in_ms(report.step_ns)}, in {count(report.rounds, 'round')}.")
    for one in report.tried:
        yield Line(f"{_what_was_tried(one.promise)}{_promised(one.promise)}{_given(one)}", is_headline=True)
        if one.outcome in (Outcome.CONFIRMED, Outcome.SMALLER) and one.promise.number is not None and one.promise.code:
            yield Line(f"Code: {clean(one.promise.code, most=400)}")
    if any(one.measured is not None and one.measured.low_ns is not None for one in report.tried):
        yield Line("In parentheses: 95% interval. Each round runs the job with and without each change.", is_aside=True)


def _what_was_tried(promise: Promise) -> str:
    label = clean(promise.label, most=80)
    return label if promise.number is None else f"Finding {promise.number}, {label}"


def _promised(promise: Promise) -> str:
    if promise.predicted is not None:
        one = promise.predicted
        return f": promised {in_ms(one.gain_ns)} per step {range_in_ms(one.low_ns, one.high_ns)}"
    return "" if promise.gain_ns is None else f": promised up to {in_ms(promise.gain_ns)} per step"


_OTHER_LOSSES = "the losses differ, because of rounding, a different order of random numbers, or changed training"


def _given(one: TriedPromise) -> str:
    if one.measured is None or one.measured.gain_ns is None:
        return f": {one.outcome.value}"
    more = "" if one.more_rounds is None else f", needs {count(one.more_rounds, 'more round')}"
    before = ": " if one.promise.gain_ns is None else ", "
    has_changed = one.losses is not None and one.losses.match is Match.CHANGED
    losses = f"; {_OTHER_LOSSES}" if has_changed and one.outcome is not Outcome.OTHER_RESULTS else ""
    return f"{before}measured {measured_gain(one.measured)}: {one.outcome.value}{more}{losses}"
