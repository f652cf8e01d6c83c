"""Sections about the job, and about data that the report lacks."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import Line, Section, clean, count, megabytes
from ddpprof.report import Job, Report
from ddpprof.report.topics import file_of


def job_lines(report: Report, longest_command: int = 200) -> Iterable[Section]:
    """Yield a line about the job, and a line for each DDP module.

    A command longer than `longest_command` is cut off.
    """
    job = report.job
    read, world = job.num_ranks_read, job.world_size
    steps = max((len(rank.measured_steps) or len(rank.steps) for rank in report.ranks), default=0)
    light = max((len(rank.light_steps) for rank in report.ranks), default=0)
    file = file_of(report)
    words = [
        clean(" ".join(job.command), most=longest_command) or clean(job.name, most=longest_command),
        count(read, "rank") if world in (None, read) else f"{read} of {world} ranks",
        *([count(len(job.hosts), "host")] if job.hosts else []),
        *machine_words(job),
        *([_FRAMEWORKS.get(job.framework, clean(job.framework))] if job.framework else []),
        *([file] if file is not None else []),
        _recorded_steps(report, steps, light) + _micro_steps(report),
    ]
    yield Line(" · ".join(words))
    for index, m in enumerate(job.modules):
        number = "" if len(job.modules) < 2 else f"module {index}, "
        hook = f", comm hook {clean(m.comm_hook)}" if m.comm_hook else ""
        buckets = f"{count(m.num_parameters, 'parameter tensor')}, {megabytes(m.parameter_bytes)} MB"
        yield Line(f"{number}{clean(m.name)}: {buckets} in {count(m.num_buckets, 'bucket')}{hook}")


def machine_words(job: Job) -> list[str]:
    """Return the backend, the device and the version of torch, if known."""
    torch = f"torch {job.torch}" if job.torch else None
    return [clean(word) for word in (job.backend, job.device, torch) if word]


_FRAMEWORKS = {
    "transformers": "Hugging Face Trainer",
    "lightning": "Lightning",
    "fabric": "Lightning Fabric",
    "accelerate": "Accelerate",
}


def _recorded_steps(report: Report, num_profiled: int, num_light: int) -> str:
    if num_profiled:
        return count(num_profiled, "profiled step")
    if not num_light and report.whole_run is not None:
        return f"{count(report.whole_run.num_steps, 'step')}, watched but not recorded in detail"
    if not num_light and file_of(report) is None:
        return "no complete step"
    return f"{count(num_light, 'step')}{' without the profiler' if file_of(report) is None else ''}"


def _micro_steps(report: Report) -> str:
    number = report.job.num_micro_steps or 1
    return f" of {number} accumulated batches each" if number > 1 else ""


def missing_lines(report: Report) -> Iterable[Section]:
    for text in report.missing:
        yield Line(f"Note: {clean(text, most=400)}", is_warning=True)
