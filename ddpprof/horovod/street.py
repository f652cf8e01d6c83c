"""Horovod: what its timeline tells, from the file to the words for it."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.horovod.reductions import HorovodSummary, summarise_horovod
from ddpprof.horovod.rules import fusion_copies, negotiation, not_fused
from ddpprof.horovod.sections import horovod_tables
from ddpprof.horovod.steps import find_horovod_steps
from ddpprof.horovod.timeline import HOROVOD_TIMELINE, HorovodTimeline
from ddpprof.horovod.waiting import summarise_tick_waiting
from ddpprof.model import OtherFile
from ddpprof.side_street import FileMeasures, SideStreet

_HAS_NO_COMPUTATION = (
    "a Horovod timeline has no computation, so overlap and exposed communication are not known; torch.profiler records "
    "both"
)
_NO_STEPS = (
    "no steps found: no tensor is reduced twice under one name. hvd.DistributedOptimizer(named_parameters=…) names them"
)


def _of_file(file: OtherFile) -> FileMeasures[HorovodSummary] | None:
    if not isinstance(file, HorovodTimeline):
        return None
    summary, steps = summarise_horovod(file), find_horovod_steps(file)
    return FileMeasures(
        summary,
        file.backend,
        {step.step: step.duration_ns for step in summary.steps if step.duration_ns is not None},
        summarise_tick_waiting(steps, file.cycles_ns, file.world_size),
        # In the first step ranks are late because they started late; where Horovod caches, it alone has ticks.
        summarise_tick_waiting(steps[1:], file.cycles_ns, file.world_size),
        (*file.notes, *_missing(summary)),
    )


def _missing(summary: HorovodSummary) -> Iterator[str]:
    if not summary.steps:
        yield _NO_STEPS
    yield _HAS_NO_COMPUTATION
    if summary.num_with_ranks < summary.num_reductions:
        yield (
            f"which rank was late is known for {summary.num_with_ranks} of {summary.num_reductions} reductions: "
            "Horovod answers the others from its cache. HOROVOD_CACHE_CAPACITY=0 records it for all, and costs time"
        )


HOROVOD: SideStreet[None, HorovodSummary] = SideStreet(
    folder="horovod",
    report_field="horovod",
    sections={"step": horovod_tables},
    rules=(negotiation, not_fused, fusion_copies),
    file=HOROVOD_TIMELINE,
    of_file=_of_file,
)
