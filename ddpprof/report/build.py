"""From a run to its report. The only list of measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpprof import __version__
from ddpprof.events import DdpModule, Rank, Run
from ddpprof.findings import find
from ddpprof.measures.attempts import summarise_attempts
from ddpprof.measures.bucket_table import BucketSummary, as_row, summarise_buckets
from ddpprof.measures.memory import memory_of_ranks
from ddpprof.measures.rpc import measure_rpc
from ddpprof.measures.traced_buckets import NO_BUCKETS, TracedBuckets, trace_buckets
from ddpprof.report.across import across_ranks
from ddpprof.report.horovod import horovod_report
from ddpprof.report.kernels import kernels_of_first_rank, slowdown_report
from ddpprof.report.observed import observe
from ddpprof.report.outside import outside_ddp
from ddpprof.report.own_reduction import own_reduction
from ddpprof.report.ranks import bucket_steps, modules_of, rank_report
from ddpprof.report.several_devices import data_parallel_report, device_loads
from ddpprof.report.tree import REPORT_FORMAT, Job, Module, RankReport, Report


def build_report(run: Run) -> Report:
    if run.horovod is not None:
        return horovod_report(utf8_text(run.name), run, run.horovod)
    modules = modules_of(run.ranks)
    ranks = tuple(replace(rank_report(rank, modules), devices=device_loads(rank)) for rank in run.ranks)
    buckets, traced = _buckets(run, modules)
    across, mismatches = across_ranks(run.ranks, modules, run.world_size)
    slowdown = slowdown_report(run.ranks)
    outside, data_parallel = outside_ddp(run.ranks, modules), data_parallel_report(run.ranks)
    records = [rank.record for rank in run.ranks if rank.record]
    memory = memory_of_ranks(records)
    rpc = tuple(one for record in records if (one := measure_rpc(record)) is not None)
    job, own = _job(run, modules), own_reduction(run.ranks)
    observed = observe(run, modules, job.backend, ranks, buckets, slowdown, across, outside, data_parallel, memory, rpc)
    return Report(
        format=REPORT_FORMAT,
        ddpprof=__version__,
        job=job,
        missing=(*run.missing, *_notes(run), *_idle_steps(ranks), *traced.notes, *mismatches),
        ranks=ranks,
        buckets=tuple(map(as_row, buckets)) or traced.buckets,
        findings=find(replace(observed, own_reduction=own)),
        kernels=kernels_of_first_rank(run.ranks),
        slowdown=slowdown,
        across=across,
        outside=outside,
        data_parallel=data_parallel,
        memory=memory,
        rpc=rpc,
        attempts=summarise_attempts(run.attempts),
        own_reduction=own,
    )


def _idle_steps(ranks: Sequence[RankReport]) -> list[str]:
    found: dict[int, list[int]] = {}
    for rank in ranks:
        if rank.measured_steps:
            for step in rank.steps:
                if step.parts is None:
                    found.setdefault(step.step, []).append(rank.rank)
    where = {number: "" if len(of) == len(ranks) else f" of {len(of)} ranks" for number, of in found.items()}
    return [f"step {number}{where[number]} holds no work of the device: it counts in no median" for number in found]


def _buckets(run: Run, modules: Sequence[DdpModule]) -> tuple[tuple[BucketSummary, ...], TracedBuckets]:
    """From the recorder's facts; without them, as far as the traces show."""
    one_clock = len(_hosts(run)) == 1 and all(_host(rank) is not None for rank in run.ranks)
    if modules:
        return summarise_buckets(modules, {r.rank: bucket_steps(r, modules) for r in run.ranks}, one_clock), NO_BUCKETS
    return (), trace_buckets({rank.rank: rank.trace for rank in run.ranks if rank.trace is not None}, one_clock)


def _hosts(run: Run) -> tuple[str, ...]:
    return tuple(sorted({host for rank in run.ranks if (host := _host(rank)) is not None}))


def _host(rank: Rank) -> str | None:
    return rank.record.host if rank.record else rank.trace.host if rank.trace else None


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value), None)


def utf8_text(name: str) -> str:
    """File names need not be UTF-8; JSON must."""
    return name.encode("utf-8", "replace").decode()


def _job(run: Run, modules: Sequence[DdpModule]) -> Job:
    records = [rank.record for rank in run.ranks if rank.record]
    traces = [rank.trace for rank in run.ranks if rank.trace]
    return Job(
        name=utf8_text(run.name),
        command=tuple(map(utf8_text, run.command)),
        world_size=run.world_size,
        num_ranks_read=len(run.ranks),
        hosts=_hosts(run),
        device=_first([*(r.device for r in records), *(t.device for t in traces)]),
        backend=_first([*(r.backend for r in records), *(t.backend for t in traces)]),
        torch=_first(r.torch for r in records),
        modules=tuple(_module(module) for module in modules),
    )


def _module(module: DdpModule) -> Module:
    cap = module.settings.get("bucket_cap_mb")
    return Module(
        name=module.name,
        num_parameters=len(module.parameters),
        parameter_bytes=sum(parameter.num_bytes for parameter in module.parameters),
        num_buckets=len(module.buckets),
        bucket_cap_mib=float(cap) if isinstance(cap, int | float) else None,
        comm_hook=module.comm_hook,
        settings={name: str(value) for name, value in module.settings.items()},
    )


def _notes(run: Run) -> list[str]:
    """What the traces lack; said once for all ranks that lack it."""
    counts = Counter(note for rank in run.ranks if rank.trace for note in rank.trace.notes)
    of_all = len(run.ranks)
    notes = [note if count == of_all else f"{note} ({count} of {of_all} ranks)" for note, count in counts.items()]
    return ["DDP was taken away: a trial to compare with", *notes] if run.settings.get("without_ddp") else notes
