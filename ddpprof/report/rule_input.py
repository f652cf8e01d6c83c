"""Construction of the input of the rules in `findings`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddpprof.findings import Observed
from ddpprof.measures.buckets.bucket_summary import BucketRow
from ddpprof.measures.kernels.devices import imbalance_ns
from ddpprof.measures.ranks.host_cores import cores_of_hosts
from ddpprof.measures.ranks.random_numbers import find_same_random_numbers, find_same_worker_seeds
from ddpprof.measures.ranks.replicas import find_drifts, find_trained_apart
from ddpprof.measures.ranks.same_samples import find_same_samples
from ddpprof.measures.ranks.skipped_passes import Passes, find_skipped_pass
from ddpprof.measures.statistics.medians import error_of_median, mean_known, median_known
from ddpprof.measures.statistics.paired_ratio import student_quantile
from ddpprof.model import DdpModule, Run
from ddpprof.model.whole_run import RankWholeRun
from ddpprof.report.rank_summary import RankSummary
from ddpprof.report.tree import RankReport, Report, StepReport

_STEPS_TO_TELL = 10
"""number of recorded steps from which on they tell better than the whole run which rank is late; fewer may be chance"""


def observe(
    run: Run,
    modules: tuple[DdpModule, ...],
    ranks: Sequence[RankSummary],
    buckets: tuple[BucketRow, ...],
    report: Report,
) -> Observed:
    """Return the rules' input. `report`: the report, still without findings."""

    def least(value: Callable[[StepReport], int | None]) -> int | None:
        """Return the mean over steps, of the rank where it is least: others' surplus is waiting for a slower rank."""
        of_ranks = [[value(step) for step in one.measured_steps if step.step in report.usual_steps] for one in reports]
        return _least(mean_known(values) for values in of_ranks)

    reports, averages = report.ranks_together, report.job.averages
    slowdown, across = report.overlap_slowdown, report.across
    facts = {rank.rank: rank.record.facts for rank in ranks if rank.record is not None}
    hosts, knows_all = cores_of_hosts([*facts.values()]), len(facts) == run.world_size
    records = {rank.rank: rank.record for rank in ranks if rank.record is not None and averages(rank.rank)}
    light_ns = _least(median_known(step.duration_ns for step in one.light_steps) for one in reports)
    watched = run.whole_run.ranks if run.whole_run is not None else ()
    whole = [one.whole for one in watched if one.whole is not None and averages(one.rank)]
    step_ns = least(lambda s: s.parts.step_ns if s.parts else s.duration_ns) or light_ns
    data_ns = least(lambda s: s.parts.data_ns if s.parts else None)
    on_cpu = report.job.device == "cpu"  # the host of an accelerator may wait while that computes
    if data_ns is None and on_cpu:
        data_ns = _least(one.data_ns for one in records.values())
    if step_ns is None and whole and on_cpu:  # no step was recorded
        step_ns, data_ns = _least(one.mean_ns for one in whole), _least(one.data_ns for one in whole)
    return Observed(
        world_size=run.world_size,
        backend=report.job.backend,
        step_ns=step_ns,
        step_noise_ns=_step_noise_ns(reports),
        modules=modules,
        buckets=buckets,
        accumulation=next((record.accumulation for record in records.values()), ()),
        comm_ns=least(lambda s: s.comm_ns),
        exposed_ns=least(lambda s: s.exposed_ns),
        trailing_ns=least(lambda s: s.trailing_ns),
        data_ns=data_ns,
        buffer_sync_ns=_least(record.buffer_sync_ns for record in records.values()),
        num_micro_steps=next((record.num_micro_steps for record in records.values()), 1),
        num_forwards=next((record.num_forwards for record in records.values()), 1),
        num_buffer_syncs=next((record.num_buffer_syncs for record in records.values()), 1),
        modules_with_buffer_syncs=next((record.modules_with_buffer_syncs for record in records.values()), None),
        unused_search_ns=least(lambda s: s.wrapper.unused_search_ns or None),  # 0: the trace does not have it
        copy_out_ns=least(lambda s: s.wrapper.copy_out_ns),
        slowdown_lost_ns=slowdown.lost_ns if slowdown else None,
        slowdown_ratio=slowdown.ratio if slowdown else None,
        slowdown_known_share=slowdown.known_share if slowdown else None,
        slowdown_control=slowdown.control if slowdown else None,
        launch_bound_ns=least(lambda s: s.idle.launch_bound_ns if s.idle else None),
        stragglers=across.stragglers.stragglers if across and across.stragglers else (),
        steps_tell_stragglers=bool(across and across.stragglers and across.stragglers.num_steps >= _STEPS_TO_TELL),
        late_gradients={late.rank: late.gradients for late in (across.late_gradients if across else ())},
        device_loads=max((one.devices for one in reports), key=imbalance_ns, default=()),
        loaders={rank: one.loaders for rank, one in facts.items()},
        same_samples=find_same_samples({rank: one.loaders for rank, one in facts.items()}),
        same_worker_seeds=find_same_worker_seeds({rank: one.loaders for rank, one in facts.items()}),
        same_random_numbers=find_same_random_numbers({rank: record.random_states for rank, record in records.items()}),
        drifts=find_drifts({rank: one.replicas for rank, one in facts.items()}),
        trained_apart=find_trained_apart({rank: one.unaveraged for rank, one in facts.items()}),
        trains_beside_ddp=any(one.unaveraged for one in facts.values()),
        joins=any(one.joins for one in facts.values()),
        timeout_s=max((one.timeout_s for one in facts.values() if one.timeout_s), default=None),
        group_size=_least(one.group_size for one in facts.values()),
        device=next((one.device for one in facts.values()), None),
        is_compiled=report.job.is_compiled,
        has_cuda=all(rank.trace.has_cuda for rank in ranks if rank.trace is not None),
        takes_cap_lists=report.job.accepted_caps.lists,
        framework=next((one.framework for one in facts.values() if one.framework), None),
        hosts=hosts,
        cores_per_rank=min((one.cores_per_rank for one in hosts), default=None) if knows_all else None,
        queued_threads=_queued_threads(watched),
        num_threads=max((one.num_threads for one in facts.values() if one.num_threads), default=None),
        of_some_ranks=next((one.of_some_ranks for one in facts.values()), ()),
        unfrozen=next((one.unfrozen for one in facts.values() if one.unfrozen), ()),
        skipped=find_skipped_pass(
            {
                one.rank: Passes(one.num_passes, one.ended == "finished", one.num_unpaired, one.unpaired_step)
                for one in watched
            }
        ),
        nonfinite={one.rank: one.nonfinite for one in watched},
        own_ns={one.rank: one.own_ns_of_stretches for one in watched if one.own_ns_of_stretches and averages(one.rank)},
        watched_ns=run.whole_run.duration_ns if run.whole_run is not None else 0,
        watched_steps=run.whole_run.num_steps - run.whole_run.first_step if run.whole_run is not None else 0,
        checkpoints={rank: (one.host, one.checkpoints) for rank, one in facts.items()},
    )


def _step_noise_ns(ranks: Sequence[RankReport]) -> int | None:
    """Return half of the 95 % interval of the median step, of the rank where it is least."""
    noises = []
    for rank in ranks:
        steps_ns = [step.duration_ns for step in rank.measured_steps] or [step.duration_ns for step in rank.light_steps]
        few = len(steps_ns) < 2
        noises.append(None if few else round(student_quantile(0.025, len(steps_ns) - 1) * error_of_median(steps_ns)))
    return _least(noises)


def _queued_threads(ranks: Sequence[RankWholeRun]) -> float | None:
    shares = [one.queued_ns / one.sampled_ns for one in ranks if one.queued_ns is not None and one.sampled_ns > 0]
    return sum(shares) / len(shares) if shares else None


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
