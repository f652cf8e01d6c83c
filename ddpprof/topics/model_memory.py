"""What is the memory of a DDP model made of, and which settings would save some of it?

    parameters  bytes of the parameters that DDP averages
    gradients   bytes of their gradients outside DDP's buckets: 0 if gradients are views of buckets
    buckets     bytes of DDP's buckets: those of all gradients
    optimizer   bytes of the optimizers' state, as of Adam's two moments
    activations are not part of it

``gradient_as_bucket_view=True`` saves the gradients outside buckets. ``ZeroRedundancyOptimizer`` keeps one rank's share
of the optimizer's state, (W - 1) / W of which it saves; after each step, every rank then receives the parameters that
the others have updated, (W - 1) / W of all. Transient buffers, such as those of comm hooks, do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from ddpprof.engine.numbers import Number
from ddpprof.layout import ABSENT, MAX_RANKS, Section, Table, columns, cut_off, notes
from ddpprof.model import DdpModule, Record


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of one rank's DDP modules and optimizers, in bytes."""

    parameter_bytes: Annotated[int, Number("parameters that DDP averages")]
    gradient_bytes: Annotated[int, Number("their gradients outside DDP's buckets")]
    bucket_bytes: Annotated[int, Number("DDP's buckets")]
    optimizer_bytes: Annotated[int | None, Number("state of the optimizers")] = None
    views_save_bytes: Annotated[int, Number("what gradient_as_bucket_view=True would save")] = 0
    zero_saves_bytes: Annotated[int | None, Number("what ZeroRedundancyOptimizer would save")] = None
    zero_receives_bytes: Annotated[int | None, Number("what each rank would then receive after a step")] = None


def measure_model_memory(record: Record, modules: Sequence[DdpModule]) -> ModelMemory | None:
    """Return the memory of the rank's DDP modules; ``None`` without any. `modules`: those of the job."""
    modules = record.modules or modules
    if not modules:
        return None
    parameters = sum(one.num_bytes for module in modules for one in module.parameters)
    copied = [module for module in modules if not module.settings.get("gradient_as_bucket_view")]
    outside_buckets = _gradient_bytes(copied)
    optimizers = record.optimizers
    optimizer = None if optimizers is None else sum(one.state_bytes for one in optimizers)
    others = (record.world_size - 1) / record.world_size
    could_shard = bool(optimizer) and others > 0 and not any(one.is_sharded for one in optimizers or ())
    return ModelMemory(
        parameter_bytes=parameters,
        gradient_bytes=outside_buckets,
        bucket_bytes=_gradient_bytes(modules),
        optimizer_bytes=optimizer,
        views_save_bytes=outside_buckets,
        zero_saves_bytes=round(others * (optimizer or 0)) if could_shard else None,
        zero_receives_bytes=round(others * parameters) if could_shard else None,
    )


def _gradient_bytes(modules: Sequence[DdpModule]) -> int:
    """Return the bytes of all gradients; sparse ones have neither a known size nor memory in a bucket."""
    return sum(one.num_bytes for module in modules for one in module.parameters if not one.is_sparse)


def model_memory_table(ranks: Sequence[tuple[int, ModelMemory]]) -> Iterable[Section]:
    """Draw the memory of models by rank; one row if it is the same on all ranks."""
    if not ranks:
        return
    is_same = len({one for _, one in ranks}) == 1
    first = ranks[0][1]
    yield Table(
        "Memory of the DDP model, MB",
        columns("rank", "parameters", "gradients", "buckets", "optimizer"),
        tuple(
            ("all" if is_same and len(ranks) > 1 else str(rank), *_cells(one))
            for rank, one in (ranks[:1] if is_same else ranks[:MAX_RANKS])
        ),
        notes(*_savings(first), "" if is_same else cut_off(len(ranks))),
    )


def _cells(one: ModelMemory) -> tuple[str, ...]:
    return tuple(map(_mb, (one.parameter_bytes, one.gradient_bytes, one.bucket_bytes, one.optimizer_bytes)))


def _savings(one: ModelMemory) -> Iterable[str]:
    if one.views_save_bytes:
        yield f"gradient_as_bucket_view=True saves {_mb(one.views_save_bytes)} MB per rank"
    if one.zero_saves_bytes:
        yield (
            f"ZeroRedundancyOptimizer saves {_mb(one.zero_saves_bytes)} MB per rank; each rank then receives "
            f"{_mb(one.zero_receives_bytes)} MB of parameters after every step"
        )


def _mb(num_bytes: int | None) -> str:
    return ABSENT if num_bytes is None else f"{num_bytes / 1e6:.{0 if num_bytes >= 1e7 else 2}f}"
