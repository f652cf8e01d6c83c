"""Numbers of each step of one rank, under the same tags for every rank, so that their lines overlay each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from ddpprof.engine.numbers import metrics_of
from ddpprof.render.tensorboard.event_file import EventFile, summary
from ddpprof.report import LightStepReport, RankReport, StepReport

NS_PER_MS = 1e6

_TAG = "ddp/{}_ms"
STEP, EXPOSED = _TAG.format("step"), _TAG.format("exposed")
OVERLAP = "ddp/overlap_share"
OWN_WORK = "ddp/own_work_ms"
PART = "ddp_step/"
"""prefix of the parts that add up to a step: ``ddp_step/forward_ms``, …"""
LAUNCHES = "ddp_launches/"
"""prefix of parts for which only the host's launch time is known, on an accelerator"""


@dataclass(frozen=True, slots=True)
class Scalar:
    step: int
    tag: str
    value: float


_OF_STEP = {_TAG.format(name): one for name, one in metrics_of(StepReport).items() if len(one.path) == 1}
"""tag → number of the step itself, without its parts"""
DESCRIPTIONS = {
    **{tag: one.meaning for tag, one in _OF_STEP.items()},
    OVERLAP: "share of the communication that overlaps with computation: 0 to 1",
    OWN_WORK: "time that the training thread spends in DDP's own work, by the host's clock",
}

_OF_LAUNCHES = "time that the host took to launch this part of the step, which the accelerator does later"


def write_scalars(file: EventFile, rank: RankReport, on_accelerator: bool) -> None:
    for scalar in scalars_of(rank, on_accelerator):
        description = _OF_LAUNCHES if scalar.tag.startswith(LAUNCHES) else DESCRIPTIONS.get(scalar.tag, "")
        write_scalar(file, scalar, description)


def write_scalar(file: EventFile, scalar: Scalar, description: str) -> None:
    from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR
    from tensorboard.plugins.scalar.metadata import create_summary_metadata

    metadata = create_summary_metadata("", description)
    metadata.data_class = DATA_CLASS_SCALAR  # otherwise TensorBoard's data server drops the description
    file.add(summary(scalar.tag, metadata, simple_value=scalar.value), scalar.step)


def scalars_of(rank: RankReport, on_accelerator: bool) -> Iterator[Scalar]:
    """Yield the scalars in order of the steps; a step has no point for what it cannot tell."""
    prefix = LAUNCHES if on_accelerator else PART
    steps: list[StepReport | LightStepReport] = [*rank.steps, *rank.light_steps]
    for step in sorted(steps, key=lambda step: step.step):
        if isinstance(step, StepReport):
            values = _of_profiled(step)
        else:
            values = {STEP: _ms(step.duration_ns)} | _parts(step.parts, prefix)
        for tag, value in values.items():
            if value is not None:
                yield Scalar(step.step, tag, value)


def _of_profiled(step: StepReport) -> dict[str, float | None]:
    values = {tag: _ms(one.value(step)) for tag, one in _OF_STEP.items()}
    values[OWN_WORK] = _ms(step.wrapper.total_ns)
    values[OVERLAP] = step.overlap_ns / step.comm_ns if step.comm_ns else None
    return values | _parts(step.parts, PART)


def _parts(parts: object, prefix: str) -> dict[str, float | None]:
    if parts is None:
        return {}
    return {
        f"{prefix}{part.name.removesuffix('_ns')}_ms": _ms(getattr(parts, part.name))
        for part in fields(parts)  # type: ignore[arg-type] # either kind of breakdown
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS
