"""The results of tuning, in words."""

from __future__ import annotations

from collections.abc import Iterable
from math import isinf

from ddpprof.experiments.loss_match import LossMatch, Match
from ddpprof.experiments.tuning import Fate, TriedSetting, TuneReport
from ddpprof.layout import ABSENT, Line, Section, clean, count, ms, notes, table_of
from ddpprof.render.sections.overhead import interval

_LOSSES = {Match.EXACT: "same", Match.ROUNDING: "rounding", Match.CHANGED: "change", Match.UNKNOWN: "?"}
_FATES = {Fate.TRIED: "", Fate.LOSING: "slower", Fate.REFUSED: "refused", Fate.FAILED: "failed"}


_SHORT = {"gradient_as_bucket_view=True": "view", "static_graph=True": "static"}


def tuning_sections(report: TuneReport) -> Iterable[Section]:
    yield from _verdict(report)
    yield _trials(report)
    yield from _losses(report)
    if report.unpredicted is not None:
        yield Line(
            f"There was no prediction, so settings unlike each other were tried: {clean(report.unpredicted, most=400)}"
        )
    elif not report.promises:
        yield Line("The prediction saw nothing to gain; its best setting was tried anyway.")
    yield Line(
        f"It took {count(report.num_steps, 'step')} of training. Trying all {report.num_distinct} distinct "
        f"settings this many times would take {report.exhaustive_steps:,} steps.",
        is_aside=True,
    )


def _verdict(report: TuneReport) -> Iterable[Section]:
    now = report.now
    if report.best is None:
        yield Line(_nothing(report))
        return
    best = report.tried[report.best]
    assert best.ratio is not None
    yield Line(
        f"Best: {clean(best.label)}: {ms(best.step_ns)} ms per step, {interval(best.ratio)} × the {ms(now.step_ns)} ms "
        f"of the job as it is{_predicted(best)}."
    )
    yield Line(f"In the script: {clean(best.code, most=800)}")
    if best.is_lossy:
        yield Line("It is lossy, since it rounds what is sent: check the final accuracy.", is_warning=True)
    if best.losses is not None and best.losses.match is Match.UNKNOWN:
        yield Line("It is unknown whether it keeps the losses, so check them.", is_warning=True)
    if "static_graph=True" in best.label:
        yield Line(
            "static_graph=True needs every step to use the same parameters, as these steps did.", is_warning=True
        )


def _nothing(report: TuneReport) -> str:
    """Say that no setting is faster, or that this cannot be told, and what to do about it."""
    known = [one for one in report.tried if one.ratio is not None and one.fate is Fate.TRIED]
    now = f"the job as it is ({ms(report.now.step_ns)} ms per step)"
    if not known:
        return f"No setting is faster than {now}. Change nothing."
    closest = min(known, key=lambda one: one.ratio.ratio if one.ratio is not None else 0.0)
    assert closest.ratio is not None
    rounds = count(closest.ratio.num_pairs, "round")
    low, label = closest.ratio.low, clean(closest.label)
    of_chance = label if closest.ratio.is_vague else f"{label}, {interval(closest.ratio)} × the time"
    if low is not None and low > _CERTAIN:
        return f"No setting is faster than {now}: {rounds} would show a gain of {1 - _CERTAIN:.0%}. Change nothing."
    varied = (
        f"this machine varied by {report.start_ratio:.2g}× between starts of one setting"
        if report.start_ratio is not None and report.start_ratio > _STEADY
        else f"{rounds} do not show how much is chance"
        if low is None
        else f"{rounds} are too few for so small a difference"
    )
    return (
        f"Cannot tell whether a setting is faster than {now}: {varied}. Closest: {of_chance}. Change nothing yet: run "
        f"it again while the machine does nothing else, or with --rounds {max(_ENOUGH, 3 * report.rounds)}."
    )


_CERTAIN = 0.9
"""ratio of steps, relative to the job as it is, that must be excluded before nothing is said to be faster"""
_STEADY = 1.1
"""slowest start over the fastest, up to which a machine is steady"""
_ENOUGH = 10
"""rounds that are advised at least"""


def _predicted(tried: TriedSetting) -> str:
    return f"; the prediction was {ms(tried.forecast.step_ns)} ms" if tried.forecast is not None else ""


def _trials(report: TuneReport) -> Section:
    return table_of(
        "Tried",
        (report.now, *report.tried),
        {
            "setting": lambda one: short_label(one.label) or "as it is",
            "step ms": lambda one: ms(one.step_ns),
            "ratio": lambda one: interval(one.ratio) if one.ratio is not None else ABSENT,
            "predicted": lambda one: ms(one.forecast.step_ns if one.forecast is not None else None),
            "losses": lambda one: ABSENT if one.losses is None else _LOSSES[one.losses.match],
            "result": lambda one: _FATES[one.fate],
        },
        ("setting", "losses", "result"),
        notes(
            "ratio: step relative to that of the job as it is, run in turn; simultaneous 95 % intervals",
            "predicted: step ms, from the profile" if report.unpredicted is None else "",
            *(f"{short}: {name}" for name, short in _SHORT.items() if any(name in one.label for one in report.tried)),
        ),
    )


def short_label(label: str) -> str:
    """Return the label of a setting for where there is little room."""
    for name, short in _SHORT.items():
        label = label.replace(name, short)
    return clean(label)


def _losses(report: TuneReport) -> Iterable[Section]:
    known = [one.losses for one in report.tried if one.losses is not None]
    compared = [one for one in known if one.num_steps]
    if not compared:
        yield Line("No step's loss was seen (no backward() was called on a scalar), so settings are unverified.")
        return
    yield Line(_compared(compared[0]))
    for one in report.tried:
        if one.losses is not None and one.losses.match is Match.CHANGED:
            yield Line(f"{clean(one.label)} changes losses by up to {_part(one.losses.difference)}.", is_warning=True)


def _compared(first: LossMatch) -> str:
    said = f"Losses of {count(first.num_steps, 'step')} on every rank were compared with those of the job as it is"
    if first.own is None:
        return f"{said}, which was run only once."
    if first.own == 0:
        said += "; two runs of it match bit for bit"
    else:
        said += f"; its own runs differ by {_part(first.own)}"
    if first.tolerance is None:
        return f"{said}, which is too much to tell anything. Does the script set a seed?"
    if first.tolerance:
        return f"{said}; {_part(first.tolerance)} is allowed."
    return f"{said}, so every setting must as well."


def _part(fraction: float | None) -> str:
    return "any amount" if fraction is None or isinf(fraction) else f"{fraction:.2g} of the loss"
