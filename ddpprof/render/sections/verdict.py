"""The whole report in a sentence and a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ddpprof.layout import ABSENT, mean_of, ms, percent
from ddpprof.render.sections.failure import failure_sentence
from ddpprof.render.sections.steps import left_out
from ddpprof.report import Report
from ddpprof.report.topics import file_of


@dataclass(frozen=True, slots=True)
class Number:
    """An important number, with its unit."""

    what: str
    value: str


@dataclass(frozen=True, slots=True)
class StepVerdict:
    text: str
    numbers: tuple[Number, ...]


def verdict(report: Report) -> StepVerdict:
    """Return the verdict. Its numbers are means over the ranks and the steps, like those of the tables."""
    of_steps = verdict_of_steps(report)
    if report.failure is None:
        return of_steps
    return StepVerdict(f"{failure_sentence(report.failure)} {of_steps.text}", of_steps.numbers)


def verdict_of_steps(report: Report) -> StepVerdict:
    """Return the verdict on the steps alone: without the sentence on how the job failed."""
    steps = [step for rank in report.ranks_together for step in report.averaged(rank)]
    if not steps:
        return _of_light_steps(report)
    step_ns, comm_ns = report.step_ns, mean_of(steps, lambda s: s.comm_ns) or 0
    exposed_ns, trailing_ns = mean_of(steps, lambda s: s.exposed_ns) or 0, mean_of(steps, lambda s: s.trailing_ns)
    profiled_ns = report.profiled_step_ns or 0
    exposed_ns = min(exposed_ns, profiled_ns)  # what the last step launched may end after it
    numbers = [Number("step", _ms(step_ns))]
    if not any(step.num_comm_kernels for step in steps):
        return StepVerdict(f"{_step_takes(report, step_ns)}, without communication.", tuple(numbers))
    share = exposed_ns / profiled_ns if profiled_ns else None
    numbers += [
        Number("communication", _ms(comm_ns)),
        Number("of it hidden", percent(1 - exposed_ns / comm_ns if comm_ns else None)),
        Number("exposed", _ms(exposed_ns)),
        Number("trailing", _ms(trailing_ns)),
    ]
    is_ = "is" if report.failure is None else "was"
    if step_ns == profiled_ns:
        text = f"{_step_takes(report, step_ns)}. Exposed communication {is_} {_ms(exposed_ns)} of it, {percent(share)}."
    else:
        text = (
            f"{_step_takes(report, step_ns)}. In the profiled steps, exposed communication {is_} {_ms(exposed_ns)} of "
            f"{_ms(profiled_ns)}, {percent(share)}."
        )
    text += _left_out(report, len({step.step for step in steps}))
    return StepVerdict(text, tuple(numbers))


def _left_out(report: Report, num_usual: int) -> str:
    """Say that steps of another kind recur, or took most of the time; a single long one may be the machine's doing."""
    ratios = sorted(left_out(report).values())
    if len(ratios) < 2 and sum(ratios) <= num_usual:
        return ""
    low, high = f"{ratios[0]:.1f}", f"{ratios[-1]:.1f}"
    times = low if low == high else f"{low} to {high}"
    some = f"{len(ratios)} of {len(ratios) + num_usual} profiled steps"
    why = ", mostly for communication" if _are_longer_for_communication(report) else ""
    return f" The numbers leave out {some}, which took {times} times as long{why}."


def _are_longer_for_communication(report: Report) -> bool:
    """Return whether steps that are left out spend most of their extra time in communication."""
    steps = [step for rank in report.ranks_together for step in rank.measured_steps]
    usual = [step for step in steps if step.step in report.usual_steps]
    others = [step for step in steps if step.step not in report.usual_steps and step.is_whole]
    longer_ns, exposed_ns = (
        (mean_of(others, of) or 0) - (mean_of(usual, of) or 0)
        for of in (lambda step: step.duration_ns, lambda step: step.exposed_ns)
    )
    return exposed_ns > longer_ns / 2


def _of_light_steps(report: Report) -> StepVerdict:
    step_ns = report.step_ns
    if step_ns is None:
        is_bare = report.ranks and report.failure is None and report.job.num_steps is None and file_of(report) is None
        return StepVerdict(_NO_STEPS if is_bare else "No step was recorded completely.", ())
    unknown = " The steps were only watched: profiled ones would show where the time goes."
    if any(rank.light_steps for rank in report.ranks):
        unknown = "" if file_of(report) is not None else " Only profiled steps tell how much of it is communication."
    return StepVerdict(f"{_step_takes(report, step_ns)}.{unknown}", (Number("step", _ms(step_ns)),))


_NO_STEPS = (
    "The traces have no steps, so they cannot tell how long one takes. Profile with torch.profiler.schedule(…) and "
    "call profiler.step() after each step, or use ddpprof trace."
)


def _step_takes(report: Report, step_ns: int | None) -> str:
    said = "A step takes" if report.failure is None else "Before the failure a step took"
    return f"{said} {_ms(step_ns)}"


def _ms(ns: float | None) -> str:
    return ABSENT if ns is None else f"{ms(ns)} ms"
