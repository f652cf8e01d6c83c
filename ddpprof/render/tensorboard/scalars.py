"""Numbers of each step of one rank, under the same tags for every rank: as lines, ranks lie one over the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from ddpprof.render.tensorboard.event_file import EventFile, summary
from ddpprof.report import LightStepReport, RankReport, StepReport

NS_PER_MS = 1e6

STEP = "ddp/step_ms"
OVERLAP = "ddp/overlap_share"
EXPOSED = "ddp/exposed_comm_ms"
PART = "ddp_step/"
"""Before the parts that add up to a step: ``ddp_step/forward_ms``, …"""
LAUNCHES = "ddp_launches/"
"""Before parts of which, on an accelerator, only is known how long the host took to launch them"""


@dataclass(frozen=True, slots=True)
class Scalar:
    step: int
    tag: str
    value: float


DESCRIPTIONS = {
    STEP: "how long the step took, by the host's clock",
    "ddp/compute_ms": "computation, as a union over streams and threads",
    "ddp/comm_ms": "communication, likewise",
    EXPOSED: "communication under which nothing is computed",
    "ddp/trailing_comm_ms": "gradients still on their way between the last backward op and the optimizer",
    OVERLAP: "share of the communication that runs while something is computed: 0 to 1",
    "ddp/own_work_ms": "time of the training thread in DDP's own work, by the host's clock",
}

_OF_LAUNCHES = "how long the host took to launch this part of the step; the accelerator does it later"

_OF_STEP: Mapping[str, Callable[[StepReport], int | None]] = {
    STEP: lambda step: step.duration_ns,
    "ddp/compute_ms": lambda step: step.compute_ns,
    "ddp/comm_ms": lambda step: step.comm_ns,
    EXPOSED: lambda step: step.exposed_ns,
    "ddp/trailing_comm_ms": lambda step: step.trailing_ns,
    "ddp/own_work_ms": lambda step: step.wrapper.total_ns,
}


def write_scalars(file: EventFile, rank: RankReport, on_accelerator: bool) -> None:
    for scalar in scalars_of(rank, on_accelerator):
        description = _OF_LAUNCHES if scalar.tag.startswith(LAUNCHES) else DESCRIPTIONS.get(scalar.tag, "")
        write_scalar(file, scalar, description)


def write_scalar(file: EventFile, scalar: Scalar, description: str) -> None:
    from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR
    from tensorboard.plugins.scalar.metadata import create_summary_metadata

    metadata = create_summary_metadata("", description)
    metadata.data_class = DATA_CLASS_SCALAR  # else TensorBoard's data server drops the description
    file.add(summary(scalar.tag, metadata, simple_value=scalar.value), scalar.step)


def scalars_of(rank: RankReport, on_accelerator: bool) -> Iterator[Scalar]:
    """In order of the steps. What a step cannot tell it has no point for."""
    steps: list[StepReport | LightStepReport] = [*rank.steps, *rank.light_steps]
    for step in sorted(steps, key=lambda step: step.step):
        for tag, value in _values(step, on_accelerator).items():
            if value is not None:
                yield Scalar(step.step, tag, value)


def _values(step: StepReport | LightStepReport, on_accelerator: bool) -> dict[str, float | None]:
    return _of_profiled(step) if isinstance(step, StepReport) else _of_light(step, LAUNCHES if on_accelerator else PART)


def _of_profiled(step: StepReport) -> dict[str, float | None]:
    values = {tag: _ms(value(step)) for tag, value in _OF_STEP.items()}
    values[OVERLAP] = step.overlap_ns / step.comm_ns if step.comm_ns else None
    return values | _parts(step.parts, PART)


def _of_light(step: LightStepReport, prefix: str) -> dict[str, float | None]:
    return {STEP: _ms(step.duration_ns)} | _parts(step.parts, prefix)


def _parts(parts: object, prefix: str) -> dict[str, float | None]:
    if parts is None:
        return {}
    return {
        f"{prefix}{part.name.removesuffix('_ns')}_ms": _ms(getattr(parts, part.name))
        for part in fields(parts)  # type: ignore[arg-type] # either kind of breakdown
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS
