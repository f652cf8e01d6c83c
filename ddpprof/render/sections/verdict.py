"""The whole report in a sentence and a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ddpprof.render.sections.layout import ABSENT, median_of, ms, percent
from ddpprof.report import Report


@dataclass(frozen=True, slots=True)
class Number:
    """One that says much, with its unit."""

    what: str
    value: str


@dataclass(frozen=True, slots=True)
class Verdict:
    text: str
    numbers: tuple[Number, ...]


def verdict(report: Report) -> Verdict:
    """Medians over all ranks' steps."""
    steps = [step for rank in report.ranks for step in rank.measured_steps]
    if not steps:
        return _of_light_steps(report)
    step_ns, exposed_ns = median_of(steps, lambda s: s.duration_ns), median_of(steps, lambda s: s.exposed_ns)
    numbers = [Number("step", _ms(step_ns))]
    if not any(step.num_comm_kernels for step in steps):
        return Verdict(f"A step takes {_ms(step_ns)}, without communication.", tuple(numbers))
    hidden = [step.overlap_ns / step.comm_ns for step in steps if step.comm_ns]
    share = (exposed_ns or 0) / step_ns if step_ns else None
    numbers += [
        Number("communication", _ms(median_of(steps, lambda s: s.comm_ns))),
        Number("of it hidden", percent(median(hidden) if hidden else None)),
        Number("exposed", _ms(exposed_ns)),
        Number("trailing", _ms(median_of(steps, lambda s: s.trailing_ns))),
    ]
    text = (
        f"A step takes {_ms(step_ns)}. Communication that no computation hides is {_ms(exposed_ns)} of it, "
        f"{percent(share)}."
    )
    return Verdict(text, tuple(numbers))


def _of_light_steps(report: Report) -> Verdict:
    light = [step for rank in report.ranks for step in rank.light_steps]
    if light:
        step_ns = median_of(light, lambda s: s.duration_ns)
        unknown = "" if report.horovod is not None else " How much of it is communication, only profiled steps tell."
        return Verdict(f"A step takes {_ms(step_ns)}.{unknown}", (Number("step", _ms(step_ns)),))
    return Verdict("No step was recorded in whole.", ())


def _ms(ns: float | None) -> str:
    return ABSENT if ns is None else f"{ms(ns)} ms"
