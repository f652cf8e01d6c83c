"""The report of a Horovod timeline: the same tree, with what a timeline of rank 0 can tell."""

from __future__ import annotations

from statistics import median

from ddpprof import __version__
from ddpprof.findings import find
from ddpprof.findings.finding import Observed
from ddpprof.measures.horovod.reductions import HorovodSummary, summarise_horovod
from ddpprof.measures.horovod.steps import find_horovod_steps
from ddpprof.measures.horovod.waiting import summarise_tick_waiting
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.model import Run
from ddpprof.model.horovod import HorovodTimeline
from ddpprof.report.tree import REPORT_FORMAT, AcrossRanks, Job, LightStepReport, RankReport, Report

_HAS_NO_COMPUTATION = (
    "a Horovod timeline has no computation, so overlap and exposed communication are not known: torch.profiler beside "
    "it records both"
)
_NO_STEPS = (
    "no steps found: no tensor is reduced twice under one name. hvd.DistributedOptimizer(named_parameters=…) names them"
)


def horovod_report(name: str, run: Run, timeline: HorovodTimeline) -> Report:
    """`name`: of the job."""
    summary = summarise_horovod(timeline)
    steps = find_horovod_steps(timeline)
    waiting = summarise_tick_waiting(steps, timeline.cycles_ns, timeline.world_size)
    durations = [step.duration_ns for step in summary.steps if step.duration_ns is not None]
    observed = Observed(
        world_size=run.world_size,
        step_ns=round(median(durations)) if durations else None,
        backend=timeline.backend,
        horovod=summary,
        # The first step's lateness is that of the start; where Horovod caches, it alone has ticks.
        horovod_waiting=summarise_tick_waiting(steps[1:], timeline.cycles_ns, timeline.world_size),
    )
    light = [
        LightStepReport(step.step, "timeline", step.duration_ns, None)
        for step in summary.steps
        if step.duration_ns is not None
    ]
    return Report(
        format=REPORT_FORMAT,
        ddpprof=__version__,
        job=Job(name, run.command, run.world_size, 1, (), None, timeline.backend, None, ()),
        missing=(*run.missing, *timeline.notes, *_missing(summary)),
        ranks=(RankReport(0, None, None, None, (), tuple(light), None),),
        buckets=(),
        findings=find(observed),
        across=_across(waiting),
        horovod=summary,
    )


def _across(waiting: tuple[RankWaiting, ...]) -> AcrossRanks | None:
    return AcrossRanks(0, None, waiting, (), None, ()) if waiting else None


def _missing(summary: HorovodSummary) -> list[str]:
    if not summary.steps:
        return [_NO_STEPS, _HAS_NO_COMPUTATION]
    notes = [_HAS_NO_COMPUTATION]
    if summary.num_with_ranks < summary.num_reductions:
        notes.append(
            f"which rank was late is known for {summary.num_with_ranks} of {summary.num_reductions} reductions: "
            "Horovod answers the others from its cache. HOROVOD_CACHE_CAPACITY=0 records it for all, and costs time"
        )
    return notes
