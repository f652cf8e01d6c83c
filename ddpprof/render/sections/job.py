"""What ran, and what the report lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpprof.layout import (
    ABSENT,
    Line,
    Section,
    Table,
    clean,
    columns,
    count,
    cut_off,
    megabytes,
    ms,
    notes,
    optional,
    table_of,
)
from ddpprof.report import Job, Report
from ddpprof.report.topics import file_of
from ddpprof.topics.attempts import AttemptSummary
from ddpprof.topics.failure import RankEnd
from ddpprof.words import ranks_in_words


def job_lines(report: Report, longest_command: int = 200) -> Iterable[Section]:
    """Say what ran, followed by each DDP module. A longer command is cut off."""
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
    """Return the backend, the device and the version of torch, as far as they are known."""
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


_MAX_ATTEMPTS = 24
_MAX_ERRORS = 8


def attempt_table(report: Report) -> Iterable[Section]:
    attempts = report.attempts[-_MAX_ATTEMPTS:]
    if not attempts:
        return
    shown = next((one.attempt for one in attempts if one.is_shown), None)
    yield table_of(
        "Attempts: torchrun restarted the ranks",
        attempts,
        {
            "attempt": lambda one: str(one.attempt),
            "after s": lambda one: ABSENT if one.after_first_ns is None else f"{one.after_first_ns / 1e9:.1f}",
            "ranks": lambda one: optional(one.world_size),
            "hosts": lambda one: str(len(one.hosts)),
            "steps": lambda one: str(one.num_steps),
            "step ms": lambda one: ms(one.step_ns),
            "change ms": _step_change,
            "ended": lambda one: how_it_ended(one.ends),
        },
        words=("ended",),
        note=notes(
            "after: time since the first attempt began; steps: recorded steps",
            "change: of the step time since the previous attempt, with its 95 % interval",
            cut_off(len(report.attempts), _MAX_ATTEMPTS, "attempts"),
        ),
    )
    rows = tuple(
        (str(one.attempt), clean(change.name, most=40), clean(change.before, most=60), clean(change.after, most=60))
        for one in attempts
        for change in one.changes
    )
    if rows:
        words = ("what", "before", "after")
        yield Table("What changed between attempts", columns("attempt", *words, words=words), rows)
    if shown is not None:
        yield Line(f"The rest of this report is about attempt {shown}, the last one with steps.", is_aside=True)


def _step_change(one: AttemptSummary) -> str:
    change = one.step_change
    if change is None:
        return ABSENT
    interval = (
        "" if change.low is None or change.high is None else f" ({change.low / 1e6:+.2f} to {change.high / 1e6:+.2f})"
    )
    return f"{change.shift / 1e6:+.2f}{interval}"


def how_it_ended(ends: Sequence[RankEnd]) -> str:
    """Say how an attempt ended, cause first: ranks with their own error, killed ranks, ranks that lost another one."""
    if not ends:
        return "before any rank recorded"
    if all(end.ended == "finished" and not end.failed for end in ends):
        return "finished"
    said = [end for end in ends if end.ended is not None]
    own = [end for end in said if end.failed and not end.is_consequence]
    lost = [end for end in said if end.failed and end.is_consequence]
    killed = [end for end in ends if end.ended is None]
    # If another rank failed first, torchrun killed these.
    parts = [
        f"rank {end.rank} {clean(end.error or f'ended with exit code {end.exit_code}', most=120)}"
        for end in own[:_MAX_ERRORS]
    ]
    if killed:
        parts.append(f"{_ranks(killed)} killed")
    if lost:
        parts.append(f"{_ranks(lost)} lost the others")
    rest = [end for end in said if not end.failed]
    parts += sorted({f"{_ranks([e for e in rest if e.ended == end.ended])} {clean(end.ended or '')}" for end in rest})
    return "; ".join(parts)


def _ranks(ends: Sequence[RankEnd]) -> str:
    return ranks_in_words([end.rank for end in ends])
