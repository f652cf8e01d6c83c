"""Measure the memory that each rank uses on its host and on every accelerator.

    steady   memory at the end of a recorded step, median over steps
    peak     maximum since the process began, read at the end of the last recorded step

Steps of light recording are preferred, because the process's memory includes the profiler's buffers.

The memory of a DDP model, and the memory that settings would save, are computed:

    parameters  bytes of the parameters whose gradients DDP averages
    gradients   bytes of their gradients outside DDP's buckets; 0 if gradients are views of the buckets
    buckets     bytes of DDP's buckets, which is the size of all gradients
    optimizer   bytes of the optimizer state, such as Adam's two moments

Activations and transient buffers, such as those of comm hooks, are not included.

``gradient_as_bucket_view=True`` saves the gradients outside the buckets. ``ZeroRedundancyOptimizer`` shards the
optimizer state, so each of W ranks saves (W - 1) / W of it. In return, after each step, every rank receives the
parameters that other ranks have updated: (W - 1) / W of all parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

from ddpprof.engine.finding import Finding, ddp_change, only_known
from ddpprof.engine.frameworks import ddp_argument
from ddpprof.engine.numbers import Number, Part
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.layout import ABSENT, MAX_RANKS, Section, Table, clean, columns, cut_off, notes
from ddpprof.model import DdpModule, DeviceMemory, Memory, MemoryPeak, Record, StepMode
from ddpprof.statistics import median_known
from ddpprof.words import ranks_in_words


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Memory of one rank on one accelerator, in bytes."""

    index: int
    is_own: bool
    """True if the rank trains on this GPU"""
    steady_bytes: Annotated[int | None, Number("memory of tensors on the accelerator at the end of a step, median")]
    """memory of tensors; ``None`` if not sampled, for example on a device that another rank trains on"""
    peak_bytes: Annotated[int, Number("peak memory of tensors on the accelerator")]
    reserved_bytes: Annotated[int, Number("peak memory reserved by torch's allocator on the accelerator")]
    total_bytes: Annotated[int | None, Number("memory capacity of the accelerator")]
    uuid: str | None = None
    peak_in: Annotated[str | None, Number("part of the step in which the accelerator's memory reached its peak")] = None
    """``None`` if unknown, or if the peak came after the steps in which ddpprof determines the part of the step"""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank, in bytes."""

    rank: int
    host: str
    steady_rss_bytes: Annotated[int | None, Number("host memory at the end of a step, median")]
    peak_rss_bytes: Annotated[int | None, Number("peak host memory")]
    devices: tuple[DeviceUse, ...] = ()
    model: Annotated[ModelMemory | None, Part()] = None
    peak_in: Annotated[str | None, Number("part of the step in which host memory reached its peak")] = None


def measure_memory(record: Record, modules: Sequence[DdpModule] = ()) -> RankMemory | None:
    """Return the rank's memory; ``None`` if the record does not contain it."""
    light = [step.memory for step in record.steps if step.mode is StepMode.LIGHT and step.memory is not None]
    samples = light or [step.memory for step in record.steps if step.memory is not None]
    if not samples and not record.devices:
        return None
    return RankMemory(
        rank=record.rank,
        host=record.host,
        steady_rss_bytes=median_known(sample.rss_bytes for sample in samples),
        peak_rss_bytes=samples[-1].peak_rss_bytes if samples else None,
        devices=_devices(samples, record.devices, record.peaks),
        model=measure_model_memory(record, modules),
        peak_in=_peak_in(record.peaks, None, samples[-1].peak_rss_bytes if samples else None),
    )


def _peak_in(peaks: Sequence[MemoryPeak], device: int | None, peak_bytes: int | None) -> str | None:
    """Return the part of the step in which the memory of a device, or of the host, reached `peak_bytes`."""
    found = next((one for one in peaks if one.device == device), None)
    if found is None or peak_bytes is None or found.peak_bytes < _SAME_PEAK * peak_bytes:
        return None
    return found.part


_SAME_PEAK = 0.98
"""a peak in the first steps counts as the peak of the recording if it is at least this share of that peak"""


def _devices(
    samples: Sequence[Memory], at_last: Sequence[DeviceMemory], peaks: Sequence[MemoryPeak]
) -> tuple[DeviceUse, ...]:
    """Return the devices that were sampled in steps, and the devices on which the rank holds only memory."""
    sampled = {device.index: device for sample in samples for device in sample.devices}
    known = {device.index: device for device in at_last}
    made = []
    for index in sorted(sampled.keys() | known.keys()):
        last, fact = sampled.get(index), known.get(index)
        newest = last or fact
        assert newest is not None
        steady = median_known(d.allocated_bytes for sample in samples for d in sample.devices if d.index == index)
        made.append(
            DeviceUse(
                index=index,
                is_own=fact.is_own if fact is not None else True,
                steady_bytes=steady,
                peak_bytes=newest.peak_bytes,
                reserved_bytes=newest.reserved_bytes,
                total_bytes=fact.total_bytes if fact is not None else None,
                uuid=fact.uuid if fact is not None else None,
                peak_in=_peak_in(peaks, index, newest.peak_bytes),
            )
        )
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory of a device (over all ranks that use it), or of one process on a host."""

    host: str
    device: int | None
    """index of the GPU, on the first rank that uses it; ``None`` for the host's memory"""
    ranks: tuple[int, ...]
    num_bytes: int


def devices_of_job(ranks: Sequence[RankMemory]) -> tuple[Holder, ...]:
    """Return the accelerators on which a rank trains, each with the memory that all ranks have reserved on it.

    If device UUIDs are unknown, devices with the same index on a host are assumed to be the same device.
    """
    uses = [(rank, use, (rank.host, use.uuid or use.index)) for rank in ranks for use in rank.devices]
    trained_on = {key for _, use, key in uses if use.is_own}
    found: dict[tuple[str, str | int], Holder] = {}
    for rank, use, key in uses:
        if key in trained_on:
            before = found.get(key, Holder(rank.host, use.index, (), 0))
            found[key] = Holder(
                rank.host, before.device, (*before.ranks, rank.rank), before.num_bytes + use.reserved_bytes
            )
    return tuple(found.values())


def processes_of_job(ranks: Sequence[RankMemory]) -> tuple[Holder, ...]:
    return tuple(
        Holder(rank.host, None, (rank.rank,), rank.steady_rss_bytes)
        for rank in ranks
        if rank.steady_rss_bytes is not None
    )


_MUCH_BYTES = 256 * 2**20
_FULL = 0.9
"""a device counts as full if tensors take at least this share of its memory at their peak"""
_WORTH_FREEING = 0.01
"""a change is reported if it saves at least this share of a device's memory"""
_MUCH = 0.25
"""imbalance is reported if the memory of one holder exceeds the median of the other holders by at least this fraction
"""


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


def memory_of_others(ranks: Sequence[RankMemory], _view: View) -> Iterator[Finding]:
    """Report ranks that have memory or a context on a device on which they do not train, usually the first GPU."""
    strangers: dict[tuple[str, str | int], list[tuple[RankMemory, DeviceUse]]] = {}
    for rank in ranks:
        for use in rank.devices:
            if not use.is_own:
                device = use.uuid if use.uuid is not None else use.index
                strangers.setdefault((rank.host, device), []).append((rank, use))
    for (host, _), held in strangers.items():
        index, reserved = held[0][1].index, sum(use.reserved_bytes for _, use in held)
        who = ranks_in_words([rank.rank for rank, _ in held]).capitalize()
        yield Finding(
            "memory-of-others",
            f"{who} hold{'' if len(held) > 1 else 's'} a context on GPU {index}, "
            f"where {'they do' if len(held) > 1 else 'it does'} not train",
            f"{_gb(reserved)} is reserved there for tensors, on {host}; each context takes a few hundred MB more",
            "Call torch.cuda.set_device(local_rank) before anything uses a GPU, and load checkpoints with "
            "torch.load(path, map_location=f'cuda:{local_rank}'). Without map_location, torch.load uses the GPU "
            "that the checkpoint was saved from; .cuda() uses the first GPU.",
            None,
            numbers=only_known(reserved_bytes=reserved),
        )


def device_memory_full(ranks: Sequence[RankMemory], view: View) -> Iterator[Finding]:
    """Report an accelerator whose memory is almost full, if a setting of DDP or the optimizer would free memory."""
    full = [
        (rank, use, rank.model)
        for rank in ranks
        for use in rank.devices
        if use.is_own and use.total_bytes and use.peak_bytes >= _FULL * use.total_bytes and rank.model is not None
    ]
    if not full:
        return
    rank, use, model = max(full, key=lambda one: one[1].peak_bytes / (one[1].total_bytes or 1))
    worth_bytes = _WORTH_FREEING * (use.total_bytes or 0)
    with_views = model.gradient_bytes >= worth_bytes
    with_zero = (model.zero_saves_bytes or 0) >= worth_bytes
    if not (with_views or with_zero or use.peak_in in _TO_LOWER_PEAK):
        return
    saving = [
        _TO_LOWER_PEAK.get(use.peak_in or "", ""),
        f"{ddp_argument(view.framework, 'gradient_as_bucket_view=True')} saves {_gb(model.gradient_bytes)}"
        if with_views
        else "",
        f"torch.distributed.optim.ZeroRedundancyOptimizer saves {_gb(model.zero_saves_bytes or 0)}, and sends "
        f"{_gb(model.zero_receives_bytes or 0)} to each rank after every step"
        if with_zero
        else "",
    ]
    yield Finding(
        "device-memory-full",
        f"Rank {rank.rank} uses {use.peak_bytes / (use.total_bytes or 1):.0%} of its GPU's memory",
        f"tensors take up to {_gb(use.peak_bytes)} of {_gb(use.total_bytes or 0)}{_reached_in(use)}; parameters take "
        f"{_gb(model.parameter_bytes)}, gradients and buckets {_gb(model.gradient_bytes + model.bucket_bytes)}, the "
        f"optimizer {_gb(model.optimizer_bytes or 0)}",
        f"To make room for a larger batch or model: {'; '.join(one for one in saving if one)}.",
        None,
        subject={"rank": rank.rank},
        change=ddp_change(view.framework, gradient_as_bucket_view=True) if with_views else None,
        numbers=only_known(peak_bytes=use.peak_bytes, total_bytes=use.total_bytes),
    )


def _reached_in(use: DeviceUse) -> str:
    return "" if use.peak_in not in _PARTS else f", reached in {_PARTS[use.peak_in]}"


_PARTS = {
    "forward": "the forward pass or the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer's step",
    "other": "code outside the forward pass, the backward pass and the optimizer",
}
_CHECKPOINTING = "torch.utils.checkpoint recomputes activations in the backward pass instead of keeping them"
_TO_LOWER_PEAK = {
    "forward": _CHECKPOINTING,
    "backward": _CHECKPOINTING,
    "optimizer": "foreach=False in the optimizer, or fused=True if it supports that, avoids temporary copies as large "
    "as the parameters",
}
"""part of the step in which memory reaches its peak → a change that lowers the peak"""


def memory_imbalance(ranks: Sequence[RankMemory], _view: View) -> Iterator[Finding]:
    """Report an accelerator or a process that uses much more memory than the other accelerators or processes."""
    devices = devices_of_job(ranks)
    outliers = _outliers(devices) or _outliers(processes_of_job(ranks))
    for holder, usual in outliers[:1]:
        on_device = holder.device is not None
        what = f"GPU {holder.device}" if on_device else f"Rank {holder.ranks[0]}"
        others = "GPUs" if on_device else "ranks"
        yield Finding(
            "memory-imbalance",
            f"{what} holds {_gb(holder.num_bytes - usual)} more memory than the other {others}",
            f"{ranks_in_words(holder.ranks)} on {holder.host}: {_gb(holder.num_bytes)} of the "
            f"{'GPU' if on_device else 'host'}'s memory; the median of the other {others} is {_gb(usual)}",
            _advice(holder),
            None,
            numbers=only_known(num_bytes=holder.num_bytes, usual_bytes=round(usual)),
        )


def _outliers(holders: Sequence[Holder]) -> list[tuple[Holder, float]]:
    """Return the holders with much more memory than the median of the other holders, largest excess first."""
    found = []
    for index, holder in enumerate(holders):
        others = [other.num_bytes for position, other in enumerate(holders) if position != index]
        usual = median(others) if others else None
        if usual is not None and holder.num_bytes - usual >= max(_MUCH_BYTES, _MUCH * usual):
            found.append((holder, usual))
    return sorted(found, key=lambda one: one[0].num_bytes - one[1], reverse=True)


def _advice(holder: Holder) -> str:
    if holder.device is not None and len(holder.ranks) > 1:
        return "Use one device per rank: call torch.cuda.set_device(local_rank) before anything uses a GPU."
    return (
        "Check what this rank keeps in memory that the other ranks do not keep: losses with their graph (use "
        "loss.item() or .detach()), a second copy of the model (EMA, evaluation), gathered predictions, a cached "
        "dataset."
    )


def memory_table(ranks: Sequence[RankMemory], _report: ReportView) -> Iterable[Section]:
    rows = [row for rank in ranks for row in _rows(rank)]
    if not rows:
        return
    has_devices = any(rank.devices for rank in ranks)
    names = ("rank", "of", "steady", "peak", "peak in", *(("reserved",) if has_devices else ()))
    yield Table(
        "Memory, MB",
        columns(*names, words=("of", "peak in")),
        tuple(row[: len(names)] for row in rows[:MAX_RANKS]),
        notes(
            "steady: at the end of recorded steps (median); peak: since the process began; peak in: part of the step "
            "in which the peak was reached; forward includes the loss",
            "GPU: memory of tensors; reserved: memory that torch's allocator holds" if has_devices else "",
            cut_off(len(rows), what="rows"),
        ),
    )
    yield from model_memory_table([(one.rank, one.model) for one in ranks if one.model is not None])


def _rows(rank: RankMemory) -> Iterable[tuple[str, ...]]:
    reached = clean(rank.peak_in or ABSENT)
    yield (str(rank.rank), "process", _mb(rank.steady_rss_bytes), _mb(rank.peak_rss_bytes), reached, ABSENT)
    for use in rank.devices:
        where = clean(f"GPU {use.index}{'' if use.is_own else ', memory only'}")
        reached = clean(use.peak_in or ABSENT)
        yield (str(rank.rank), where, _mb(use.steady_bytes), _mb(use.peak_bytes), reached, _mb(use.reserved_bytes))


def _mb(num_bytes: int | None) -> str:
    return ABSENT if num_bytes is None else f"{num_bytes / 1e6:.{2 if 0 < num_bytes < 1e7 else 0}f}"


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of one rank's DDP modules and optimizers, in bytes."""

    parameter_bytes: Annotated[int, Number("parameters whose gradients DDP averages")]
    gradient_bytes: Annotated[int, Number("gradients outside DDP's buckets")]
    """number of bytes that ``gradient_as_bucket_view=True`` would save"""
    bucket_bytes: Annotated[int, Number("DDP's buckets")]
    optimizer_bytes: Annotated[int | None, Number("optimizer state")] = None
    zero_saves_bytes: Annotated[int | None, Number("memory that ZeroRedundancyOptimizer would save")] = None
    zero_receives_bytes: Annotated[
        int | None, Number("bytes that ZeroRedundancyOptimizer would send to each rank per step")
    ] = None


def measure_model_memory(record: Record, modules: Sequence[DdpModule]) -> ModelMemory | None:
    """Return the memory of the rank's DDP modules; ``None`` if it has none.

    `modules`: used if `record` contains none.
    """
    modules = record.modules or modules
    if not modules:
        return None
    parameters = sum(one.num_bytes for module in modules for one in module.parameters)
    copied = [module for module in modules if not module.settings.get("gradient_as_bucket_view")]
    optimizers = record.optimizers
    optimizer = None if optimizers is None else sum(one.state_bytes for one in optimizers)
    others = (record.world_size - 1) / record.world_size
    could_shard = bool(optimizer) and others > 0 and not any(one.is_sharded for one in optimizers or ())
    return ModelMemory(
        parameter_bytes=parameters,
        gradient_bytes=_gradient_bytes(copied),
        bucket_bytes=_gradient_bytes(modules),
        optimizer_bytes=optimizer,
        zero_saves_bytes=round(others * (optimizer or 0)) if could_shard else None,
        zero_receives_bytes=round(others * parameters) if could_shard else None,
    )


def _gradient_bytes(modules: Sequence[DdpModule]) -> int:
    """Return the total size of all dense gradients. The size of sparse gradients is unknown."""
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
    if one.gradient_bytes:
        yield f"gradient_as_bucket_view=True saves {_mb(one.gradient_bytes)} MB per rank"
    if one.zero_saves_bytes:
        yield (
            f"ZeroRedundancyOptimizer saves {_mb(one.zero_saves_bytes)} MB per rank; each rank then receives "
            f"{_mb(one.zero_receives_bytes)} MB of parameters after every step"
        )


MEMORY: Topic[RankMemory, tuple[RankMemory, ...]] = Topic(
    name="memory",
    sections={"cost": memory_table},
    rules=(memory_of_others, memory_imbalance, device_memory_full),
    of_rank=lambda rank, _steps, modules: None if rank.record is None else measure_memory(rank.record, modules),
    rank_type=RankMemory,
    of_ranks=tuple,
)
