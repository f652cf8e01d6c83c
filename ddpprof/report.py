"""`build_report(run)`: everything that is known about a run, in one tree. The only list of measures.

The JSON report is this tree, field by field; its schema is ``render/report.schema.json``. ``None`` is what this run
cannot tell. Times are ns, sizes bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ddpprof import __version__
from ddpprof.events import DdpModule, Rank, Record, RecordedStep, Run, Trace
from ddpprof.findings import Finding, Observed, find
from ddpprof.measures.breakdown import Breakdown, measure_breakdown
from ddpprof.measures.bucket_table import BucketSummary, summarise_buckets
from ddpprof.measures.buckets import BucketStep, measure_buckets
from ddpprof.measures.cost import RecordingCost, measure_recording_cost
from ddpprof.measures.kernels import KernelSummary, summarise_kernels
from ddpprof.measures.overlap import measure_overlap
from ddpprof.measures.recorded import RecordedBreakdown, measure_recorded_breakdown
from ddpprof.measures.torch_times import TorchTimes, compare_with_torch
from ddpprof.measures.trailing import measure_trailing
from ddpprof.measures.wrapper import WrapperCost, measure_wrapper_cost

_MOST_KERNELS = 500

REPORT_FORMAT = 1
"""Version of the JSON report. It grows when a field changes its meaning or goes, not when one is added."""


@dataclass(frozen=True, slots=True)
class Module:
    """One DDP module."""

    name: str
    num_parameters: int
    parameter_bytes: int
    num_buckets: int
    bucket_cap_mib: float | None
    comm_hook: str | None
    settings: Mapping[str, str] = field(default_factory=dict)
    """DDP's constructor arguments by torch's names, as text"""


@dataclass(frozen=True, slots=True)
class Job:
    """What ran."""

    name: str
    command: tuple[str, ...]
    world_size: int | None
    num_ranks_read: int
    hosts: tuple[str, ...]
    device: str | None
    backend: str | None
    torch: str | None
    modules: tuple[Module, ...]


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Lengths of unions of device work, ns: of one step, or of a whole trace."""

    compute_ns: int
    comm_ns: int
    overlap_ns: int
    exposed_ns: int
    copy_ns: int
    num_comm_kernels: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """One profiled step of one rank."""

    step: int
    duration_ns: int
    compute_ns: int
    comm_ns: int
    overlap_ns: int
    exposed_ns: int
    trailing_ns: int | None
    copy_ns: int
    num_comm_kernels: int
    parts: Breakdown | None
    wrapper: WrapperCost
    torch_times: TorchTimes | None


@dataclass(frozen=True, slots=True)
class LightStepReport:
    """One step that only the light recorder saw."""

    step: int
    mode: str
    duration_ns: int
    parts: RecordedBreakdown | None


@dataclass(frozen=True, slots=True)
class RankReport:
    rank: int
    host: str | None
    ended: str | None
    whole: DeviceWork | None
    """the whole trace, between the steps too"""
    steps: tuple[StepReport, ...]
    light_steps: tuple[LightStepReport, ...]
    recording_cost: RecordingCost | None


@dataclass(frozen=True, slots=True)
class Report:
    format: int
    ddpprof: str
    job: Job
    missing: tuple[str, ...]
    """what the report lacks, and why"""
    ranks: tuple[RankReport, ...]
    buckets: tuple[BucketSummary, ...]
    findings: tuple[Finding, ...]
    kernels: tuple[KernelSummary, ...] = ()
    """of the first rank with a trace: those that take most of its time"""


def build_report(run: Run) -> Report:
    modules = _modules(run)
    ranks = tuple(_rank_report(rank, modules) for rank in run.ranks)
    buckets = summarise_buckets(modules, {r.rank: _bucket_steps(r, modules) for r in run.ranks}, len(_hosts(run)) == 1)
    job = _job(run, modules)
    return Report(
        format=REPORT_FORMAT,
        ddpprof=__version__,
        job=job,
        missing=(*run.missing, *_notes(run)),
        ranks=ranks,
        buckets=buckets,
        findings=find(_observe(run, modules, job.backend, ranks, buckets)),
        kernels=_kernels(run),
    )


def _kernels(run: Run) -> tuple[KernelSummary, ...]:
    for rank in run.ranks:
        if rank.trace is not None and (steps := _whole_steps(rank.trace, _training_steps(rank.record))):
            return summarise_kernels(rank.trace, steps)[:_MOST_KERNELS]
    return ()


def _modules(run: Run) -> tuple[DdpModule, ...]:
    """DDP builds the same modules and buckets on every rank: those of the first rank that says so."""
    return next((rank.record.modules for rank in run.ranks if rank.record and rank.record.modules), ())


def _hosts(run: Run) -> tuple[str, ...]:
    known = {rank.record.host if rank.record else rank.trace.host if rank.trace else None for rank in run.ranks}
    return tuple(sorted(host for host in known if host is not None))


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value), None)


def _text(name: str) -> str:
    """File names need not be UTF-8; JSON must."""
    return name.encode("utf-8", "replace").decode()


def _job(run: Run, modules: Sequence[DdpModule]) -> Job:
    records = [rank.record for rank in run.ranks if rank.record]
    traces = [rank.trace for rank in run.ranks if rank.trace]
    return Job(
        name=_text(run.name),
        command=tuple(map(_text, run.command)),
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
    return [note if count == of_all else f"{note} ({count} of {of_all} ranks)" for note, count in counts.items()]


def _rank_report(rank: Rank, modules: Sequence[DdpModule]) -> RankReport:
    trace, record = rank.trace, rank.record
    recorded = _training_steps(record)
    steps = _step_reports(trace, recorded, modules) if trace else ()
    traced = {step.step for step in steps}
    return RankReport(
        rank=rank.rank,
        host=record.host if record else trace.host if trace else None,
        ended=record.ended if record else None,
        whole=_device_work(trace, None) if trace else None,
        steps=steps,
        light_steps=tuple(
            LightStepReport(s.number, s.mode, s.end_ns - s.start_ns, measure_recorded_breakdown(s))
            for s in recorded
            if s.number not in traced
        ),
        recording_cost=measure_recording_cost(recorded, record.profiler_pause_ns) if record else None,
    )


def _training_steps(record: Record | None) -> tuple[RecordedStep, ...]:
    """Without those that only serve to compare kernels with."""
    return tuple(step for step in record.steps if step.mode != "baseline") if record else ()


def _device_work(trace: Trace, step: int | None) -> DeviceWork:
    overlap = measure_overlap(trace, step)
    comm = trace.collectives
    return DeviceWork(
        compute_ns=overlap.compute_ns,
        comm_ns=overlap.comm_ns,
        overlap_ns=overlap.overlap_ns,
        exposed_ns=overlap.exposed_ns,
        copy_ns=overlap.copy_ns,
        num_comm_kernels=len(comm) if step is None else int((comm.step == step).sum()),
    )


def _whole_steps(trace: Trace, recorded: Sequence[RecordedStep]) -> list[int]:
    """A step that the record does not know never ended: the job did, in the middle of it."""
    known = {step.number for step in recorded}
    return [index for index, step in enumerate(trace.steps) if not recorded or step.number in known]


def _step_reports(
    trace: Trace, recorded: Sequence[RecordedStep], modules: Sequence[DdpModule]
) -> tuple[StepReport, ...]:
    by_number = {step.number: step for step in recorded}
    return tuple(_step_report(trace, index, by_number, modules) for index in _whole_steps(trace, recorded))


def _step_report(
    trace: Trace, index: int, recorded: dict[int, RecordedStep], modules: Sequence[DdpModule]
) -> StepReport:
    step = trace.steps[index]
    work, trailing = _device_work(trace, index), measure_trailing(trace, index)
    parts = measure_breakdown(trace, index)
    return StepReport(
        step=step.number,
        duration_ns=step.duration_ns,
        compute_ns=work.compute_ns,
        comm_ns=work.comm_ns,
        overlap_ns=work.overlap_ns,
        exposed_ns=work.exposed_ns,
        trailing_ns=trailing.trailing_ns if trailing else None,
        copy_ns=work.copy_ns,
        num_comm_kernels=work.num_comm_kernels,
        parts=parts,
        wrapper=measure_wrapper_cost(trace, index, recorded.get(step.number)),
        torch_times=_torch_times(trace, recorded, step.number, modules),
    )


def _torch_times(
    trace: Trace, recorded: dict[int, RecordedStep], number: int, modules: Sequence[DdpModule]
) -> TorchTimes | None:
    """DDP publishes the times of an iteration in the next one: they stand in the next step's record."""
    step, following = recorded.get(number), recorded.get(number + 1)
    if step is None or following is None or len(modules) != 1:
        return None
    logged = following.torch_stats.get(0)
    return compare_with_torch(0, step, measure_buckets(modules, step, trace), trace, logged) if logged else None


def _bucket_steps(rank: Rank, modules: Sequence[DdpModule]) -> list[BucketStep]:
    """From profiled steps where the rank has them, else from steps of light recording."""
    if rank.record is None:
        return []
    wanted = "profiled" if rank.trace is not None and rank.trace.steps else "light"
    steps = [step for step in rank.record.steps if step.mode == wanted]
    trace = rank.trace if wanted == "profiled" else None
    return [row for step in steps for row in measure_buckets(modules, step, trace)]


def _median(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def _observe(
    run: Run,
    modules: tuple[DdpModule, ...],
    backend: str | None,
    ranks: Sequence[RankReport],
    buckets: tuple[BucketSummary, ...],
) -> Observed:
    def least(value: Callable[[StepReport], int | None]) -> int | None:
        """Median over steps, of the rank where it is least: the others' surplus is waiting for a slower rank."""
        medians = [_median(value(step) for step in rank.steps) for rank in ranks if rank.steps]
        return min((m for m in medians if m is not None), default=None)

    records = [rank.record for rank in run.ranks if rank.record]

    def least_recorded(value: Callable[[RecordedStep], int | None]) -> int | None:
        medians = [_median(value(step) for step in _training_steps(record) if step.forwards) for record in records]
        return min((m for m in medians if m is not None), default=None)

    light = [_median(s.duration_ns for s in rank.light_steps) for rank in ranks]
    data = least(lambda s: s.parts.data_ns if s.parts else None)
    return Observed(
        world_size=run.world_size,
        backend=backend,
        step_ns=least(lambda s: s.duration_ns) or min((d for d in light if d is not None), default=None),
        modules=modules,
        buckets=buckets,
        comm_ns=least(lambda s: s.comm_ns),
        exposed_ns=least(lambda s: s.exposed_ns),
        trailing_ns=least(lambda s: s.trailing_ns),
        data_ns=data if data is not None else least_recorded(lambda s: s.data_ns),
        buffer_sync_ns=least_recorded(lambda s: sum(f.buffer_sync_ns for f in s.forwards)),
        unused_search_ns=least(lambda s: s.wrapper.unused_search_ns or None),  # 0: the trace does not have it
        copy_out_ns=least(lambda s: s.wrapper.copy_out_ns),
        loaders={record.rank: record.loaders for record in records},
        checkpoints={record.rank: (record.host, record.checkpoints) for record in records},
    )
