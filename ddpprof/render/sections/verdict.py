"""The whole report in a sentence and a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ddpprof.comparison.compare import medians_ns
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
    """The numbers of ``ddpprof compare``: means over the ranks, medians over the steps."""
    steps = [step for rank in report.ranks for step in rank.measured_steps]
    if not steps:
        return _of_light_steps(report)
    of_run = medians_ns(report)
    step_ns, comm_ns, exposed_ns = of_run["step"], of_run["comm"], of_run["exposed"]
    numbers = [Number("step", _ms(step_ns))]
    if not any(step.num_comm_kernels for step in steps):
        return Verdict(f"A step takes {_ms(step_ns)}, without communication.", tuple(numbers))
    share = exposed_ns / step_ns if step_ns else None
    numbers += [
        Number("communication", _ms(comm_ns)),
        Number("of it hidden", percent(1 - exposed_ns / comm_ns if comm_ns else None)),
        Number("exposed", _ms(exposed_ns)),
        Number("trailing", _ms(of_run.get("trailing"))),
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
