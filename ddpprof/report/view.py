"""Measures across ranks: collectives on all ranks, their clocks, which ranks wait for which, and slowed kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ddpprof.engine.topic import View
from ddpprof.model import DdpModule, Run
from ddpprof.model.whole_run import RankWholeRun
from ddpprof.report.tree import Job
from ddpprof.statistics.medians import error_of_median, mean_known, median_known
from ddpprof.statistics.paired_ratio import student_quantile
from ddpprof.topics.buckets.rows import BucketRow
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.devices import DEVICES, imbalance_ns
from ddpprof.topics.facts import RankFacts
from ddpprof.topics.host_threads import HOST_THREADS, host_threads
from ddpprof.topics.overlap_slowdown.view import OVERLAP_SLOWDOWN, OverlapSlowdownReport
from ddpprof.topics.ranks.across import ACROSS, AcrossRanks
from ddpprof.topics.ranks.rules import LATENESS, Lateness
from ddpprof.topics.steps.measure import RankReport, StepReport
from ddpprof.topics.steps.view import STEPS

_STEPS_TO_TELL = 10
"""minimum number of recorded steps at which they show a late rank better than the whole run; fewer may be chance"""


def view_of(
    run: Run,
    job: Job,
    modules: tuple[DdpModule, ...],
    ranks: Mapping[int, RankReport],
    known: Mapping[int, RankFacts],
    usual_steps: Sequence[int],
    shown: Mapping[str, Any],
) -> View:
    """Return the view; it contains only the topics' results given in `shown`."""

    def least(value: Callable[[StepReport], int | None]) -> int | None:
        """Return the mean over steps on the rank with the lowest mean; what others take beyond it is waiting."""
        of_ranks = [[value(step) for step in one.measured_steps if step.step in usual_steps] for one in reports]
        return _least(mean_known(values) for values in of_ranks)

    reports = [report for rank, report in ranks.items() if job.averages(rank)]
    records = [one.record for rank, one in known.items() if one.record is not None and job.averages(rank)]
    facts = {rank: one.record.facts for rank, one in known.items() if one.record is not None}
    threads = host_threads([*facts.values()], _watched(run))
    knows_all = len(facts) == run.world_size
    light_ns = _least(median_known(step.duration_ns for step in one.light_steps) for one in reports)
    whole = [one.whole for one in _watched(run) if one.whole is not None and job.averages(one.rank)]
    step_ns = least(lambda s: s.parts.step_ns if s.parts else s.duration_ns) or light_ns
    data_ns = least(lambda s: s.parts.data_ns if s.parts else None)
    on_cpu = job.device == "cpu"  # the host of an accelerator may wait while that computes
    if data_ns is None and on_cpu:
        data_ns = _least(one.data_ns for one in records)
    if step_ns is None and whole and on_cpu:  # no step was recorded
        step_ns, data_ns = _least(one.mean_ns for one in whole), _least(one.data_ns for one in whole)
    return View(
        world_size=run.world_size,
        backend=job.backend,
        step_ns=step_ns,
        step_noise_ns=_step_noise_ns(reports),
        modules=modules,
        comm_ns=least(lambda s: s.comm_ns),
        exposed_ns=least(lambda s: s.exposed_ns),
        trailing_ns=least(lambda s: s.trailing_ns),
        data_ns=data_ns,
        buffer_sync_ns=_least(one.buffer_sync_ns for one in records),
        unused_search_ns=least(lambda s: s.wrapper.unused_search_ns or None),  # 0: the trace does not have it
        copy_out_ns=least(lambda s: s.wrapper.copy_out_ns),
        launch_bound_ns=least(lambda s: s.idle.late_launch_ns if s.idle else None),
        host_read_ns=least(lambda s: s.idle.host_read_ns if s.idle else None),
        optimizer_ns=least(lambda s: s.parts.optimizer_ns if s.parts else None),
        num_micro_steps=next((one.num_micro_steps for one in records), 1),
        trains_beside_ddp=any(one.unaveraged for one in facts.values()),
        joins=any(one.joins for one in facts.values()),
        group_size=_least(one.group_size for one in facts.values()),
        device=next((one.device for one in facts.values()), None),
        is_compiled=job.is_compiled,
        has_cuda=all(one.trace.has_cuda for one in known.values() if one.trace is not None),
        takes_cap_lists=job.accepted_caps.lists,
        could_take_cap_lists=job.takes_cap_lists,
        framework=next((one.framework for one in facts.values() if one.framework), None),
        cores_per_rank=min((one.cores_per_rank for one in threads.hosts), default=None) if knows_all else None,
        num_threads=max((one.num_threads for one in facts.values() if one.num_threads), default=None),
        records=facts,
        whole_run=run.whole_run,
        tried=run.tried,
        shown={**shown, HOST_THREADS.name: threads},
    )


def shown_across(
    run: Run,
    job: Job,
    ranks: tuple[RankReport, ...],
    buckets: tuple[BucketRow, ...],
    slowdown: OverlapSlowdownReport | None,
    across: AcrossRanks,
) -> dict[str, Any]:
    """Return the results, by topic name, of topics whose measures need all ranks."""
    loads = max((one.devices for one in ranks if job.averages(one.rank)), key=imbalance_ns, default=())
    lateness = _lateness(run, job, across)
    shown = {
        STEPS.name: ranks,
        ACROSS.name: across,
        BUCKETS.name: buckets,
        OVERLAP_SLOWDOWN.name: slowdown,
        DEVICES.name: loads,
        LATENESS.name: lateness,
    }
    return {name: value for name, value in shown.items() if value is not None}


def _lateness(run: Run, job: Job, across: AcrossRanks) -> Lateness:
    stragglers, whole_run = across.stragglers, run.whole_run
    return Lateness(
        stragglers=stragglers.stragglers if stragglers is not None else (),
        steps_tell_stragglers=stragglers is not None and stragglers.num_steps >= _STEPS_TO_TELL,
        late_gradients={late.rank: late.gradients for late in across.late_gradients},
        own_ns={
            one.rank: one.own_ns_of_stretches
            for one in _watched(run)
            if one.own_ns_of_stretches and job.averages(one.rank)
        },
        busy_shares={one.rank: share for one in _watched(run) if (share := one.busy_share) is not None},
        watched_ns=whole_run.duration_ns if whole_run is not None else 0,
        watched_steps=whole_run.num_steps - whole_run.first_step if whole_run is not None else 0,
    )


def _watched(run: Run) -> Sequence[RankWholeRun]:
    return run.whole_run.ranks if run.whole_run is not None else ()


def _step_noise_ns(ranks: Sequence[RankReport]) -> int | None:
    """Return half of the 95 % interval of the median step, on the rank where it is smallest, ns."""
    noises = []
    for rank in ranks:
        steps_ns = [step.duration_ns for step in rank.measured_steps] or [step.duration_ns for step in rank.light_steps]
        few = len(steps_ns) < 2
        noises.append(None if few else round(student_quantile(0.025, len(steps_ns) - 1) * error_of_median(steps_ns)))
    return _least(noises)


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
