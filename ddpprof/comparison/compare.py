"""`compare(a, b)`: two reports side by side. What grew, by how much, and whether that is more than noise.

A measure of a step is the mean over the ranks. The samples are the steps: profiled ones, or those of light recording
where one of the runs has no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import mean, median
from typing import TypeVar

from ddpprof import __version__
from ddpprof.comparison.kernels import KernelChange, compare_kernels
from ddpprof.measures.bucket_table import BucketRow
from ddpprof.measures.shift import Shift, shift_between
from ddpprof.measures.wrapper import WrapperCost
from ddpprof.report import LightStepReport, Report, StepReport

_StepT = TypeVar("_StepT", StepReport, LightStepReport)

COMPARISON_FORMAT = 1
"""Version of the JSON form. It grows when a field changes its meaning or goes, not when one is added."""


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One measure in both runs, ns per step. ``b`` less ``a``: positive is slower."""

    metric: str
    a_ns: int | None
    b_ns: int | None
    """medians over steps"""
    num_steps_a: int
    num_steps_b: int
    difference: Shift | None

    @property
    def fraction(self) -> float | None:
        """The difference as a part of `a_ns`."""
        if self.difference is None or not self.a_ns:
            return None
        return self.difference.shift / self.a_ns


@dataclass(frozen=True, slots=True)
class BucketChange:
    """A bucket of the same parameters in both runs, or of one run only."""

    a: BucketRow | None
    b: BucketRow | None


@dataclass(frozen=True, slots=True)
class SettingChange:
    """What the runs themselves say that is different: world size, bucket cap, versions."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    format: int
    ddpprof: str
    a: str
    b: str
    """the runs' names"""
    settings: tuple[SettingChange, ...]
    metrics: tuple[MetricChange, ...]
    buckets: tuple[BucketChange, ...]
    kernels: tuple[KernelChange, ...]
    """kernels whose time per step changed beyond noise, the slowed ones first, by the time that they cost"""
    missing: tuple[str, ...]
    """what cannot be compared, and why"""


def compare(a: Report, b: Report) -> Comparison:
    metrics = _metrics(a, b)
    kernels, why_not = compare_kernels(a.kernels, b.kernels)
    missing = [f"{name}: {text}" for name, report in (("A", a), ("B", b)) for text in report.missing]
    if not metrics:
        missing.append("nothing to compare: the runs have no steps of the same kind")
    return Comparison(
        format=COMPARISON_FORMAT,
        ddpprof=__version__,
        a=a.job.name,
        b=b.job.name,
        settings=tuple(_settings(a, b)),
        metrics=metrics,
        buckets=_buckets(a.buckets, b.buckets),
        kernels=kernels,
        missing=(*missing, *([why_not] if why_not else [])),
    )


def medians_ns(report: Report) -> dict[str, int]:
    """What `compare` says of one run: of each measure the mean over the ranks, of that the median over the steps."""
    return {one.metric: one.a_ns for one in _metrics(report, report) if one.a_ns is not None}


_OF_PROFILED: Mapping[str, Callable[[StepReport], int | None]] = {
    "step": lambda s: s.duration_ns,
    "compute": lambda s: s.compute_ns,
    "comm": lambda s: s.comm_ns,
    "overlap": lambda s: s.overlap_ns,
    "exposed": lambda s: s.exposed_ns,
    "trailing": lambda s: s.trailing_ns,
    "forward": lambda s: s.parts.forward_ns if s.parts else None,
    "backward": lambda s: s.parts.backward_ns if s.parts else None,
    "optimizer": lambda s: s.parts.optimizer_ns if s.parts else None,
    "data": lambda s: s.parts.data_ns if s.parts else None,
    "other": lambda s: s.parts.other_ns if s.parts else None,
    "idle": lambda s: s.parts.idle_ns if s.parts else None,
}

_OF_LIGHT: Mapping[str, Callable[[LightStepReport], int | None]] = {
    "step": lambda s: s.duration_ns,
    "forward": lambda s: s.parts.forward_ns if s.parts else None,
    "backward and comm": lambda s: s.parts.backward_and_comm_ns if s.parts else None,
    "optimizer": lambda s: s.parts.optimizer_ns if s.parts else None,
    "data": lambda s: s.parts.data_ns if s.parts else None,
    "other": lambda s: s.parts.other_ns if s.parts else None,
}

METRICS = tuple(dict.fromkeys((*_OF_PROFILED, "wrapper", *_OF_LIGHT)))


def _metrics(a: Report, b: Report) -> tuple[MetricChange, ...]:
    if _profiled(a) and _profiled(b):
        measures = {**_OF_PROFILED, "wrapper": _wrapper(a, b)}
        changes = [
            _change(name, _by_step(_profiled(a), value), _by_step(_profiled(b), value))
            for name, value in measures.items()
        ]
    else:
        changes = [
            _change(name, _by_step(_light(a), value), _by_step(_light(b), value)) for name, value in _OF_LIGHT.items()
        ]
    return tuple(change for change in changes if change.num_steps_a and change.num_steps_b)


def _wrapper(a: Report, b: Report) -> Callable[[StepReport], int | None]:
    """DDP's own work, as far as both runs know it: a trace that ddpprof did not record lacks some of its parts."""
    parts = [field.name for field in fields(WrapperCost)]
    known = [
        part
        for part in parts
        if all(any(getattr(step.wrapper, part) is not None for step in _profiled(report)) for report in (a, b))
    ]
    return lambda step: sum(getattr(step.wrapper, part) or 0 for part in known)


def _profiled(report: Report) -> list[StepReport]:
    return [step for rank in report.ranks for step in rank.measured_steps]


def _light(report: Report) -> list[LightStepReport]:
    return [step for rank in report.ranks for step in rank.light_steps]


def _by_step(steps: Iterable[_StepT], value: Callable[[_StepT], int | None]) -> list[float]:
    """One value for each step's number: the mean over the ranks that know it."""
    found: dict[int, list[int]] = {}
    for step in steps:
        measured = value(step)
        if measured is not None:
            found.setdefault(step.step, []).append(measured)
    return [mean(values) for values in found.values()]


def _change(name: str, a: Sequence[float], b: Sequence[float]) -> MetricChange:
    return MetricChange(
        metric=name,
        a_ns=round(median(a)) if a else None,
        b_ns=round(median(b)) if b else None,
        num_steps_a=len(a),
        num_steps_b=len(b),
        difference=shift_between(a, b),
    )


def _settings(a: Report, b: Report) -> list[SettingChange]:
    facts = [_facts(a), _facts(b)]
    if a.job.modules and b.job.modules:
        names = list(dict.fromkeys((*facts[0], *facts[1])))
    else:  # what only one of them knows is no difference
        names = [name for name in facts[0] if name in facts[1]]
    return [
        SettingChange(name, facts[0].get(name, "-"), facts[1].get(name, "-"))
        for name in names
        if facts[0].get(name) != facts[1].get(name)
    ]


def _facts(report: Report) -> dict[str, str]:
    job = report.job
    facts = {
        "command": " ".join(job.command),
        "ranks": str(job.world_size if job.world_size is not None else job.num_ranks_read),
        "hosts": str(len(job.hosts)) if job.hosts else None,
        "device": job.device,
        "backend": job.backend,
        "torch": job.torch,
    }
    for index, module in enumerate(job.modules):
        of_module = f"module {index}: " if len(job.modules) > 1 else ""
        facts[f"{of_module}model"] = module.name
        facts[f"{of_module}parameters"] = f"{module.num_parameters} ({module.parameter_bytes} bytes)"
        facts[f"{of_module}buckets"] = str(module.num_buckets)
        facts[f"{of_module}comm hook"] = module.comm_hook
        facts |= {f"{of_module}{setting}": value for setting, value in module.settings.items()}
    return {name: value for name, value in facts.items() if value}


def _buckets(a: Sequence[BucketRow], b: Sequence[BucketRow]) -> tuple[BucketChange, ...]:
    """In the order of `a`; then those that only `b` has."""
    left = {_bucket_key(bucket): bucket for bucket in b}
    changes = [BucketChange(bucket, left.pop(_bucket_key(bucket), None)) for bucket in a]
    return (*changes, *(BucketChange(None, bucket) for bucket in left.values()))


def _bucket_key(bucket: BucketRow) -> tuple[object, ...]:
    """What it holds; where only a trace knows of it, its place and size."""
    if bucket.first_parameter is None:
        return (bucket.module, bucket.index, bucket.num_bytes)
    return (bucket.module, bucket.num_bytes, bucket.num_parameters, bucket.first_parameter, bucket.last_parameter)
