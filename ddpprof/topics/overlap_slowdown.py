"""Report on computation that communication slows down, with advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from ddpprof.engine.finding import Finding, environment_change, only_known
from ddpprof.engine.numbers import Number, Part
from ddpprof.engine.topic import ReportView, TableSchema, Topic, View
from ddpprof.layout import ABSENT, Line, Section, Table, clean, in_ms, median_of, ms, percent, table_of
from ddpprof.model import Kernel
from ddpprof.model.backends import backend_of
from ddpprof.topics.kernel_slowdown import ENOUGH_KNOWN, KernelSlowdown, OverlapSlowdown
from ddpprof.topics.kernels import MOST_KERNELS, KernelSummary, kernel_name
from ddpprof.topics.steps.view import STEPS

_MAX_KERNELS = 5
_WORTH_A_TABLE = 0.01
"""a table is shown if the lost time is at least this share of the step"""
_TELLS_NOTHING = 0.02
"""the ratio is shown if at least this share of the computation during communication could be compared"""


@dataclass(frozen=True, slots=True)
class SlowedKernel:
    """Duration of one kernel during communication compared with its duration alone."""

    kernel: Kernel
    ratio: Annotated[
        float | None,
        Number("duration while communication runs divided by duration without communication; null if unknown"),
    ]
    num_covered: int
    num_alone: int
    covered_ns: int
    """duration of the kernel during communication, per step and rank"""
    lost_ns: Annotated[int, Number("time lost to communication, per step and rank")]


@dataclass(frozen=True, slots=True)
class OverlapSlowdownReport:
    """Slowdown of computation by concurrent communication. Times are in ns per step and rank."""

    reason: str | None
    """why the slowdown is unknown; ``None`` if it is known"""
    ratio: float | None
    lost_ns: int | None
    covered_ns: int
    """time spent on computation during communication"""
    known_share: float | None
    """share of `covered_ns` in kernels that also ran without communication; `ratio` and `lost_ns` are about these
    kernels
    """
    knows_input_shapes: bool
    num_steps: int
    """number of measured steps, summed over ranks"""
    kernels: tuple[SlowedKernel, ...]
    """kernels in descending order of lost time"""
    num_baseline_steps: int = 0
    """number of baseline steps, which have no communication, summed over ranks"""
    control: float | None = None
    """factor by which work without communication took longer than in baseline steps; `ratio` is corrected for this
    factor
    """


def slowdown_report(slowdown: OverlapSlowdown, num_baseline_steps: int) -> OverlapSlowdownReport:
    """Return how much communication slows kernels, over all ranks together."""
    kernels = tuple(_slowed(row, slowdown.num_steps) for row in slowdown.kernels if row.ratio is not None)
    return OverlapSlowdownReport(
        reason=slowdown.reason,
        ratio=slowdown.ratio,
        lost_ns=slowdown.lost_ns_per_step,
        covered_ns=round(slowdown.covered_ns / slowdown.num_steps) if slowdown.num_steps else 0,
        known_share=slowdown.known_share,
        knows_input_shapes=slowdown.knows_input_shapes,
        num_steps=slowdown.num_steps,
        kernels=kernels[:MOST_KERNELS],
        num_baseline_steps=num_baseline_steps,
        control=slowdown.control,
    )


def _slowed(row: KernelSlowdown, num_steps: int) -> SlowedKernel:
    return SlowedKernel(
        kernel=row.kernel,
        ratio=row.ratio,
        num_covered=row.num_compared,
        num_alone=row.num_alone,
        covered_ns=round(row.compared_ns / num_steps),
        lost_ns=round(row.lost_ns / num_steps),
    )


def overlap_slowdown(slowdown: OverlapSlowdownReport, view: View) -> Iterator[Finding]:
    """Report computation that is slower because communication runs on the same device."""
    if not view.worth(slowdown.lost_ns) or slowdown.ratio is None or (slowdown.known_share or 0) < ENOUGH_KNOWN:
        return
    if slowdown.control is not None and abs(slowdown.control - 1) >= slowdown.ratio - 1:
        return  # baseline steps differ from measured steps by more than the effect of communication
    may_be_other_work = view.shares_cores and slowdown.control is None
    variables = backend_of(view.backend).to_slow_it
    other_work = "; other work on these cores may be the cause (use --baseline-steps to find out)"
    yield Finding(
        "overlap-slowdown",
        f"Communication makes concurrent computation take {slowdown.ratio:.2f} × as long",
        f"{in_ms(slowdown.lost_ns or 0)} per step are lost in kernels that also ran without communication "
        f"({slowdown.known_share:.0%} of the overlapped computation); only the part on the critical path makes the "
        f"step longer{other_work if may_be_other_work else ''}",
        _advice(view),
        slowdown.lost_ns,
        is_noise=may_be_other_work,
        change=environment_change(**variables) if variables else None,
        numbers=only_known(slowdown_ratio=slowdown.ratio, lost_ns=slowdown.lost_ns, known_share=slowdown.known_share),
    )


def _advice(view: View) -> str:
    threads, cores, backend = view.num_threads, view.cores_per_rank, backend_of(view.backend)
    has_a_core_left = threads is None or cores is None or threads == 1 or threads < cores
    if backend.runs_on_host and has_a_core_left:  # otherwise the compute threads leave no core for the backend
        return backend_of(None).on_slow_computation
    return backend.on_slow_computation


def slowdown_section(slowdown: OverlapSlowdownReport, report: ReportView) -> Iterable[Section]:
    measured = [step for rank in report[STEPS] or () for step in rank.measured_steps]
    if not any(step.num_comm_kernels for step in measured):
        return
    again = clean(report.trace_command("--baseline-steps 5"))
    more = "" if slowdown.num_baseline_steps else f" To measure it, record steps without communication: {again}"
    if slowdown.ratio is None or slowdown.lost_ns is None:
        yield Line(
            f"It is unknown how much communication slows computation: {clean(slowdown.reason or '')}.{more}",
            is_aside=True,
        )
        return
    if (slowdown.known_share or 0) < _TELLS_NOTHING:
        yield Line(
            "It is unknown how much communication slows computation: almost none of the computation that ran during "
            f"communication also ran without communication.{more}",
            is_aside=True,
        )
        return
    if (slowdown.known_share or 0) < ENOUGH_KNOWN:
        yield Line(
            f"Only {percent(slowdown.known_share)} of the overlapped computation could be compared with the same "
            f"kernels without communication; with communication, they took {slowdown.ratio:.2f} × as long.{more}",
            is_aside=True,
        )
        return
    summary = _summary(slowdown.ratio, slowdown.lost_ns, slowdown)
    typical = median_of(measured, lambda step: step.duration_ns)
    if slowdown.lost_ns < _WORTH_A_TABLE * (typical or 0):
        yield Line(f"{summary}.", is_aside=True)
    else:
        yield _kernels(summary, slowdown)


def _summary(ratio: float, lost_ns: int, slowdown: OverlapSlowdownReport) -> str:
    computation = f"{in_ms(slowdown.covered_ns)} of overlapped computation per step"
    known = f"measured for {percent(slowdown.known_share)} of the {computation}"
    if lost_ns <= 0:
        return f"Communication does not noticeably slow kernels: with it, they take {ratio:.2f} × as long ({known})"
    return (
        f"Communication makes concurrent computation take {ratio:.2f} × as long: {in_ms(lost_ns)} lost per step "
        f"({known})"
    )


def _control(control: float | None) -> str:
    if control is None:
        return ""
    return (
        f"; corrected for the speed of work without communication, which took {control:.2f} × as long as in the "
        "baseline steps"
    )


def _kernels(summary: str, slowdown: OverlapSlowdownReport) -> Table:
    return table_of(
        summary,
        slowdown.kernels[:_MAX_KERNELS],
        {
            "kernel": lambda row: kernel_name(row.kernel),
            "grid and block": lambda row: clean(row.kernel.launch_shape or ABSENT, most=40),
            "runs during comm": lambda row: str(row.num_covered),
            "alone": lambda row: str(row.num_alone),
            "slower": lambda row: ABSENT if row.ratio is None else f"{row.ratio:.2f} ×",
            "lost": lambda row: ms(row.lost_ns),
        },
        ("kernel", "grid and block"),
        "known: share of kernels that also ran without communication; lost: ms per step, compared with the same work "
        "without communication"
        + ("" if slowdown.knows_input_shapes else ", matched by position in the step")
        + _control(slowdown.control),
    )


OVERLAP_SLOWDOWN: Topic[None, OverlapSlowdownReport] = Topic(
    "overlap_slowdown", rules=(overlap_slowdown,), sections={"slowdown": slowdown_section}
)


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: Annotated[str, Number("name of the kernel or op")]
    launch_shape: Annotated[str | None, Number("grid and block; null on CPU")]
    input_shapes: Annotated[str | None, Number("input shapes of the kernel's op")]
    position: Annotated[int | None, Number("on CPU: position among the ops of the same name")]
    summary: Annotated[KernelSummary, Part()]
    slowed: Annotated[SlowedKernel | None, Part("slowdown_")]


def _kernel_rows(kernels: Sequence[KernelSummary], report: ReportView) -> Iterator[_Kernel]:
    slowdown = report[OVERLAP_SLOWDOWN]
    slowed = {one.kernel: one for one in slowdown.kernels} if slowdown is not None else {}
    for summary in kernels:
        one = summary.kernel
        yield _Kernel(one.name, one.launch_shape, one.input_shapes, one.position, summary, slowed.get(one))


KERNELS: Topic[None, tuple[KernelSummary, ...]] = Topic(
    "kernels",
    tables=(
        TableSchema(
            "kernels",
            "One row for each of the kernels (on CPU: ops) that take the most time on the first rank with a trace.",
            _Kernel,
            _kernel_rows,
        ),
    ),
)
