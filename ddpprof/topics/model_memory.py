"""Compute the memory of a DDP model, and the memory that settings would save.

    parameters  bytes of the parameters whose gradients DDP averages
    gradients   bytes of their gradients outside DDP's buckets; 0 if gradients are views of the buckets
    buckets     bytes of DDP's buckets, which is the size of all gradients
    optimizer   bytes of the optimizer state, such as Adam's two moments

Activations and transient buffers, such as those of comm hooks, are not included.

``gradient_as_bucket_view=True`` saves the gradients outside the buckets. ``ZeroRedundancyOptimizer`` shards the
optimizer state, so each of W ranks saves (W - 1) / W of it. After each step, every rank then receives the parameters
that other ranks have updated, which is (W - 1) / W of all parameters.
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

    parameter_bytes: Annotated[int, Number("parameters whose gradients DDP averages")]
    gradient_bytes: Annotated[int, Number("gradients outside DDP's buckets")]
    bucket_bytes: Annotated[int, Number("DDP's buckets")]
    optimizer_bytes: Annotated[int | None, Number("optimizer state")] = None
    views_save_bytes: Annotated[int, Number("memory that gradient_as_bucket_view=True would save")] = 0
    zero_saves_bytes: Annotated[int | None, Number("memory that ZeroRedundancyOptimizer would save")] = None
    zero_receives_bytes: Annotated[int | None, Number("bytes that each rank would then receive per step")] = None


def measure_model_memory(record: Record, modules: Sequence[DdpModule]) -> ModelMemory | None:
    """Return the memory of the rank's DDP modules; ``None`` without any. `modules`: used if `record` has none."""
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
    """Return the bytes of all gradients, without sparse gradients, whose size is unknown."""
    return sum(one.num_bytes for module in modules for one in module.parameters if not one.is_sparse)


def model_memory_table(ranks: Sequence[tuple[int, ModelMemory]]) -> Iterable[Section]:
    """Yield a table of the models' memory by rank, with one row if it is the same on all ranks."""
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
