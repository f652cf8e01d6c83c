"""Build the report of a run, or of a file of another tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ddpprof.engine.finding import Predictions
from ddpprof.engine.numbers import clocks_of
from ddpprof.engine.topic import View
from ddpprof.model import DdpModule, OtherFile, RecordedStep, Run
from ddpprof.model.backends import is_accelerator
from ddpprof.model.json_files import ended_well
from ddpprof.model.whole_run import RankWholeRun, WholeRun
from ddpprof.report import REPORT_FORMAT, Job, Module, Report
from ddpprof.report.run_profile import KnownRun
from ddpprof.report.topics import (
    TOPICS,
    RankSummary,
    RunSummary,
    find_all,
    merge_summaries,
    of_each,
    report_fields,
    summarize_rank,
    with_topics,
)
from ddpprof.report.whatif import predict_changes, ranks_to_replay
from ddpprof.statistics import error_of_median, mean_known, median_known
from ddpprof.statistics.paired_ratio import student_quantile
from ddpprof.topics.attempts import summarize_attempts
from ddpprof.topics.bound import find_bound
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.buckets.steps import BucketRow, BucketStep, summarize_buckets
from ddpprof.topics.buckets.traced import NO_BUCKETS, RankBuckets, TracedBuckets, TracedPasses, trace_buckets
from ddpprof.topics.devices import DEVICES, imbalance_ns
from ddpprof.topics.facts import RankFacts
from ddpprof.topics.failure import find_failure, rank_end
from ddpprof.topics.layer_collectives import LAYER_COLLECTIVES, doubted
from ddpprof.topics.overlap_slowdown import OVERLAP_SLOWDOWN, OverlapSlowdownReport, slowdown_report
from ddpprof.topics.process_settings import HOST_THREADS, cores_of_hosts, host_threads
from ddpprof.topics.ranks.across import ACROSS, AcrossRanks, RecordedSteps, across_ranks
from ddpprof.topics.ranks.rules import LATENESS, Lateness
from ddpprof.topics.ranks.stragglers import Straggler
from ddpprof.topics.steps.breakdown import usual_steps
from ddpprof.topics.steps.measure import LightStepReport, RankReport, StepReport, profiled_ratio, profiler_cost
from ddpprof.topics.steps.view import STEPS
from ddpprof.topics.unused_parameters import as_all_ranks_use
from ddpprof.version import __version__
from ddpprof.words import ranks_in_words, utf8_text

_STEPS_TO_TELL = 10
"""late ranks are identified from the recorded steps if there are at least this many, otherwise from the whole run"""


def view_of(
    run: Run,
    job: Job,
    modules: tuple[DdpModule, ...],
    ranks: Mapping[int, RankReport],
    known: Mapping[int, RankFacts],
    usual_steps: Sequence[int],
    shown: Mapping[str, Any],
) -> View:
    """Return the view for the rules. It contains the results of the topics in `shown`, and of no other topics."""

    def least(value: Callable[[StepReport], int | None]) -> int | None:
        """Return the mean over the steps, on the rank with the lowest mean.

        On other ranks, the mean includes waiting.
        """
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
    usual_ns = run.whole_run.usual_step_ns if run.whole_run is not None else None
    data_ns = least(lambda s: s.parts.data_ns if s.parts else None)
    on_cpu = job.device == "cpu"  # with an accelerator, the host may wait while the accelerator computes
    if data_ns is None and on_cpu:
        data_ns = _least(one.data_ns for one in records)
    if step_ns is None and whole and on_cpu:  # no step was recorded
        step_ns, data_ns = _least(one.mean_ns for one in whole), _least(one.data_ns for one in whole)
    return View(
        world_size=run.world_size,
        backend=job.backend,
        step_ns=step_ns,
        step_noise_ns=_step_noise_ns(reports, run.whole_run if on_cpu else None),
        modules=modules,
        comm_ns=least(lambda s: s.comm_ns),
        exposed_ns=least(lambda s: s.exposed_ns),
        trailing_ns=least(lambda s: s.trailing_ns),
        data_ns=data_ns,
        buffer_sync_ns=_least(one.buffer_sync_ns for one in records),
        unused_search_ns=least(lambda s: s.wrapper.unused_search_ns or None),  # 0: not in the trace
        copy_out_ns=least(lambda s: s.wrapper.copy_out_ns),
        launch_bound_ns=least(lambda s: s.idle.late_launch_ns if s.idle else None),
        profiler_ns=None if on_cpu else profiler_cost(reports, usual_steps),
        profiled_ratio=profiled_ratio(reports, usual_ns) if on_cpu else 1.0,
        host_read_ns=least(lambda s: s.idle.host_read_ns if s.idle else None),
        optimizer_ns=least(lambda s: s.parts.optimizer_ns if s.parts else None),
        num_micro_steps=next((one.num_micro_steps for one in records), 1),
        trains_beside_ddp=any(one.unaveraged for one in facts.values()),
        ended_well=ended_well(run.exits),
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
        link_bits_per_s=run.link_bits_per_s,
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
    """Return, by topic name, the results of topics that need the measures of all ranks."""
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
        mean_own_ns={
            one.rank: one.whole.own_ns
            for one in _watched(run)
            if one.whole is not None and one.whole.wait_ns is not None and job.averages(one.rank)
        },
        busy_shares={one.rank: share for one in _watched(run) if (share := one.busy_share) is not None},
        watched_ns=whole_run.duration_ns if whole_run is not None else 0,
        watched_steps=whole_run.num_steps - whole_run.first_step if whole_run is not None else 0,
    )


def _watched(run: Run) -> Sequence[RankWholeRun]:
    return run.whole_run.ranks if run.whole_run is not None else ()


def _step_noise_ns(ranks: Sequence[RankReport], run: WholeRun | None) -> int | None:
    """Return half the width of the 95 % interval of the median step time in ns.

    The interval is derived from the median step times in parts of the whole run, if they are known; otherwise, from the
    profiled steps, on the rank where it is narrowest.
    """
    samples = [[step.duration_ns for step in one.measured_steps or one.light_steps] for one in ranks]
    if run is not None and run.usual_step_ns is not None:
        samples = [[one.median_ns for one in run.usual_stretches]]
    return _least(
        round(student_quantile(0.025, len(ns) - 1) * error_of_median(ns)) if len(ns) > 1 else None for ns in samples
    )


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def report_of_file(run: Run, file: OtherFile) -> Report:
    """Build the report of a file of another tool, with the data that the file contains."""
    readers = ((topic, topic.of_file(file)) for topic in TOPICS if topic.of_file is not None)
    topic, told = next((topic, told) for topic, told in readers if told is not None)
    light = tuple(LightStepReport(step, "timeline", ns, None) for step, ns in told.steps_ns.items())
    view = View(
        world_size=run.world_size,
        step_ns=round(median(told.steps_ns.values())) if told.steps_ns else None,
        backend=told.backend,
        shown={topic.name: told.measured},
    )
    report = Report(
        format=REPORT_FORMAT,
        ddpprof=__version__,
        job=Job(
            name=utf8_text(run.name),
            command=run.command,
            world_size=run.world_size,
            num_ranks_read=1,
            hosts=(),
            device=None,
            backend=told.backend,
            torch=None,
            modules=(),
        ),
        missing=(*run.missing, *told.missing),
        ranks=(
            RankReport(rank=0, host=None, ended=None, whole=None, steps=(), light_steps=light, recording_cost=None),
        ),
        buckets=(),
        findings=find_all(view),
    )
    return replace(report, **{topic.name: told.measured})


@dataclass(frozen=True, slots=True)
class Reduced:
    report: Report
    buckets: Mapping[int, Sequence[BucketStep]]
    """rank → its buckets in every profiled step; timelines need them"""
    passes: Mapping[int, TracedPasses] = field(default_factory=dict)
    """rank → its gradient all-reduces, from its trace"""


def build_report(run: Run) -> Report:
    """Build the report of a run."""
    return reduce_run(run).report


def reduce_run(run: Run) -> Reduced:
    """Reduce a run that is entirely in memory to its report."""
    summary = merge_summaries([summarize_rank(rank, run.modules) for rank in run.ranks])

    def recorded(ranks: Sequence[int]) -> dict[int, Sequence[RecordedStep]]:
        return {one.rank: one.record.steps_to_replay if one.record else () for one in run.ranks if one.rank in ranks}

    return reduce_summary(run, run.modules, summary, recorded)


def reduce_summary(run: Run, modules: tuple[DdpModule, ...], summary: RunSummary, recorded: RecordedSteps) -> Reduced:
    """Reduce a run to its report, given the summary of its ranks. ``run.ranks`` is not used."""
    if run.other_file is not None:
        return Reduced(report_of_file(run, run.other_file), {})
    ranks = summary.ranks
    records = [one.record for one in ranks if one.record]
    traces = [one.facts.trace for one in ranks if one.facts.trace]
    reports, contributed, found_buckets = (of_each(STEPS, ranks), of_each(ACROSS, ranks), of_each(BUCKETS, ranks))
    together = _averaging_together(ranks)
    used = [one.record.facts.modules for one in together if one.record and one.record.facts.modules]
    modules = as_all_ranks_use(modules, used)
    buckets, traced = _buckets(together, found_buckets, modules)
    across, mismatches = across_ranks(
        {rank: found.traced for rank, found in contributed.items() if found.traced is not None},
        {one.rank: contributed[one.rank].progress for one in together},
        [one.rank for one in together if one.record is not None],
        modules,
        run.world_size,
        recorded,
    )
    baseline = sum(trace.num_baseline_steps for trace in traces)
    slowdown = slowdown_report(summary.overlap_slowdown, baseline) if summary.overlap_slowdown is not None else None
    job = _job(run, ranks, modules)
    measured = [step for one in reports.values() for step in one.measured_steps]
    cut_off = {step.step for step in measured if not step.is_whole}
    whole = [step for step in measured if step.step not in cut_off]
    lengths_ns = [(step.step, step.duration_ns) for step in whole or measured]
    usual = usual_steps(lengths_ns, {number for record in records for number in record.evaluated_steps})
    known = shown_across(run, job, tuple(reports.values()), buckets or traced.buckets, slowdown, across)
    view = with_topics(
        view_of(run, job, modules, reports, {one.rank: one.facts for one in ranks}, usual, known),
        [one.measured for one in ranks],
    )
    report = Report(
        format=REPORT_FORMAT,
        ddpprof=__version__,
        job=job,
        missing=tuple(
            map(
                utf8_text,
                (
                    *run.missing,
                    *_notes(run, ranks, together),
                    *_idle_steps([*reports.values()]),
                    *traced.notes,
                    *mismatches,
                ),
            )
        ),
        findings=(),
        kernels=summary.kernels,
        attempts=summarize_attempts(run.attempts, run.exits),
        usual_steps=usual,
        failure=find_failure([rank_end(record.facts, modules) for record in records], run.exits),
        times=clocks_of(Report) if is_accelerator(job.device) else {},
        **report_fields(view),
    )
    passes = _passes(together, found_buckets)
    stragglers = across.stragglers.stragglers if across.stragglers is not None else ()
    predictions = _predictions(KnownRun(report, modules, {}, passes), stragglers, recorded)
    view = replace(view, predictions=doubted(predictions, view[LAYER_COLLECTIVES]))
    findings, bound = find_all(view), find_bound(report, view)
    drawn = {rank: found.steps for rank, found in found_buckets.items()} if modules else traced.ranks
    return Reduced(replace(report, findings=findings, bound=bound), drawn, passes)


def _predictions(run: KnownRun, stragglers: Sequence[Straggler], recorded: RecordedSteps) -> Predictions:
    """Predict changes, if there are DDP modules or late ranks for which a rule needs predictions."""
    if not run.modules and not stragglers:
        return Predictions()
    known = [one.rank for one in run.report.ranks_together]
    ranks = ranks_to_replay(known, stragglers)
    passes = {rank: run.passes[rank] for rank in ranks if rank in run.passes}
    return predict_changes(replace(run, recorded=recorded(ranks), passes=passes), stragglers)


def _idle_steps(ranks: Sequence[RankReport]) -> list[str]:
    found: dict[int, list[int]] = {}
    for rank in ranks:
        if rank.measured_steps:
            for step in rank.steps:
                if step.parts is None:
                    found.setdefault(step.step, []).append(rank.rank)
    where = {
        number: "" if len(of) == len(ranks) else f" ({len(of)} of {len(ranks)} ranks)" for number, of in found.items()
    }
    return [f"step {number} has no device work{where[number]} and is excluded from all means" for number in found]


def _passes(ranks: Sequence[RankSummary], found: Mapping[int, RankBuckets]) -> dict[int, TracedPasses]:
    return {one.rank: passes for one in ranks if (passes := found[one.rank].passes) is not None}


def _buckets(
    ranks: Sequence[RankSummary], found: Mapping[int, RankBuckets], modules: Sequence[DdpModule]
) -> tuple[tuple[BucketRow, ...], TracedBuckets]:
    """Summarize the buckets from the records or, without them, from the traces."""
    one_clock = len(_hosts(ranks)) == 1 and all(one.host is not None for one in ranks)
    if modules:
        return summarize_buckets(modules, {one.rank: found[one.rank].steps for one in ranks}, one_clock), NO_BUCKETS
    return (), trace_buckets(_passes(ranks, found), one_clock)


def _hosts(ranks: Sequence[RankSummary]) -> tuple[str, ...]:
    return tuple(sorted({one.host for one in ranks if one.host is not None}))


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value), None)


def _job(run: Run, ranks: Sequence[RankSummary], modules: Sequence[DdpModule]) -> Job:
    records = [one.record for one in ranks if one.record]
    traces = [one.facts.trace for one in ranks if one.facts.trace]
    facts = [record.facts for record in records]
    hosts = cores_of_hosts(facts) if len(facts) == run.world_size else ()  # other ranks may use the same cores
    return Job(
        name=utf8_text(run.name),
        command=tuple(map(utf8_text, run.command)),
        world_size=run.world_size,
        num_ranks_read=len(ranks),
        hosts=_hosts(ranks),
        device=_first([*(one.device for one in facts), *(t.device for t in traces)]),
        backend=_first([*(one.backend for one in facts), *(t.backend for t in traces)]),
        num_steps=max((one.num_steps for one in facts if one.num_steps is not None), default=None),
        num_micro_steps=next((r.num_micro_steps for r in records), None),
        torch=_first(one.torch for one in facts),
        framework=_first(one.framework for one in facts),
        is_compiled=any(one.is_compiled for one in facts),
        modules=tuple(_module(module) for module in modules),
        recorded_with=_words(run.settings.get("recorded_with")),
        only_watched=run.settings.get("steps") == 0 == run.settings.get("cost_steps"),
        group_ranks=_group_of(ranks[0]) if ranks else None,
        round_trip_ns=max((one.round_trip_ns for one in facts if one.round_trip_ns is not None), default=None),
        spare_cores=min(((one.num_cores - one.num_threads) / one.num_ranks for one in hosts), default=None),
        ranks_per_core=max((one.num_ranks / one.num_cores for one in hosts), default=None),
        is_of_torchrun=run.is_of_torchrun,
        num_launches=sum(one.is_job for one in run.exits),
    )


def _group_of(rank: RankSummary) -> tuple[int, ...] | None:
    return rank.record.facts.group_ranks if rank.record is not None else None


def _averaging_together(ranks: Sequence[RankSummary]) -> Sequence[RankSummary]:
    """Return the ranks that average gradients with the lowest rank. Other ranks may train a different model."""
    members = _group_of(ranks[0]) if ranks else None
    return ranks if members is None else [one for one in ranks if one.rank in members]


def _words(found: object) -> tuple[str, ...]:
    """Return a list of strings from a run's settings, which are untrusted JSON."""
    return tuple(utf8_text(str(word)) for word in found) if isinstance(found, list | tuple) else ()


def _module(module: DdpModule) -> Module:
    return Module(
        name=module.name,
        num_parameters=len(module.parameters),
        parameter_bytes=sum(parameter.num_bytes for parameter in module.parameters),
        num_buckets=len(module.buckets),
        bucket_cap_mib=module.bucket_cap_mb,
        comm_hook=module.comm_hook,
        settings={name: str(value) for name, value in module.settings.items()},
    )


def _notes(run: Run, ranks: Sequence[RankSummary], together: Sequence[RankSummary]) -> list[str]:
    """Return the notes on traces, each with the number of ranks to which it applies."""
    counts, of_all = Counter(note for one in ranks if one.facts.trace for note in one.facts.trace.notes), len(ranks)
    notes = [note if count == of_all else f"{note} ({count} of {of_all} ranks)" for note, count in counts.items()]
    if len(together) < len(ranks):
        covered = ranks_in_words([one.rank for one in together])
        others = "the other ranks average gradients in other process groups"
        notes.insert(0, f"the step, buckets, late ranks and predictions refer to {covered}; {others}")
    return ["this is a trial without DDP, for comparison", *notes] if run.settings.get("without_ddp") else notes
