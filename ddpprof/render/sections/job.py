"""What ran, and what the report lacks."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.render.sections.layout import Line, Section, clean, count, megabytes
from ddpprof.report import Report


def job_lines(report: Report) -> Iterable[Section]:
    job = report.job
    read, world = job.num_ranks_read, job.world_size
    steps = max((len(rank.measured_steps) or len(rank.steps) for rank in report.ranks), default=0)
    light = max((len(rank.light_steps) for rank in report.ranks), default=0)
    without_profiler = " without the profiler" if report.horovod is None else ""
    words = [
        clean(" ".join(job.command)) or clean(job.name),
        count(read, "rank") if world in (None, read) else f"{read} of {world} ranks",
        *([count(len(job.hosts), "host")] if job.hosts else []),
        *(clean(word) for word in (job.backend, job.device) if word),
        *([f"torch {clean(job.torch)}"] if job.torch else []),
        *(["Horovod timeline"] if report.horovod is not None else []),
        count(steps, "profiled step") if steps else f"{count(light, 'step')}{without_profiler}",
    ]
    yield Line(" · ".join(words))
    for m in job.modules:
        hook = f", comm hook {clean(m.comm_hook)}" if m.comm_hook else ""
        buckets = f"{count(m.num_parameters, 'parameter')}, {megabytes(m.parameter_bytes)} MB"
        yield Line(f"{clean(m.name)}: {buckets} in {count(m.num_buckets, 'bucket')}{hook}")


def missing_lines(report: Report) -> Iterable[Section]:
    for text in report.missing:
        yield Line(f"Note: {clean(text, most=400)}", is_warning=True)
