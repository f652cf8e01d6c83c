"""How much memory does each rank hold, on its host and on every accelerator?

    steady   median over recorded steps of what is held at their ends
    peak     maximum since the process began, as known at the last of these steps

Steps of light recording are preferred, since the profiler's buffers are also part of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ddpprof.engine.numbers import Number
from ddpprof.measures.statistics.medians import median_known
from ddpprof.model import DeviceMemory, Memory, Record, StepMode


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One rank on one accelerator, in bytes."""

    index: int
    is_own: bool
    """True if the rank trains on it"""
    steady_bytes: Annotated[int | None, Number("tensors on its accelerator at the ends of steps, median")]
    """bytes in tensors; ``None`` if not sampled, as on devices that are not its own"""
    peak_bytes: Annotated[int, Number("most tensors on it")]
    reserved_bytes: Annotated[int, Number("most memory reserved on it")]
    total_bytes: Annotated[int | None, Number("memory that it has")]
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank, in bytes."""

    rank: int
    host: str
    steady_rss_bytes: Annotated[int | None, Number("host memory at the ends of steps, median")]
    peak_rss_bytes: Annotated[int | None, Number("most host memory")]
    devices: tuple[DeviceUse, ...] = ()


def measure_memory(record: Record) -> RankMemory | None:
    """Return the rank's memory; ``None`` if the record lacks it, as those of earlier versions do."""
    light = [step.memory for step in record.steps if step.mode is StepMode.LIGHT and step.memory is not None]
    samples = light or [step.memory for step in record.steps if step.memory is not None]
    if not samples and not record.devices:
        return None
    return RankMemory(
        rank=record.rank,
        host=record.host,
        steady_rss_bytes=median_known(sample.rss_bytes for sample in samples),
        peak_rss_bytes=samples[-1].peak_rss_bytes if samples else None,
        devices=_devices(samples, record.devices),
    )


def _devices(samples: Sequence[Memory], at_last: Sequence[DeviceMemory]) -> tuple[DeviceUse, ...]:
    """Return sampled devices, completed from the last record, and devices where memory is only held."""
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
            )
        )
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory of one place: a device with all processes on it, or one process of a host."""

    host: str
    device: int | None
    """index for the first rank that uses it; ``None`` for the host's memory"""
    ranks: tuple[int, ...]
    num_bytes: int


def devices_of_job(ranks: Sequence[RankMemory]) -> tuple[Holder, ...]:
    """Return each accelerator on which a rank trains, once, with what all ranks have reserved on it.

    Without identities, an index is taken for the same device by all ranks of a host.
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
