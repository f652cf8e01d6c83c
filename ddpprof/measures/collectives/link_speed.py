"""How fast does a collective of each size get through the network, and how fast do two at once?

time  = median over iterations of the time on the slowest rank
algbw = bytes / time
busbw = algbw · factor of n ranks, as defined by nccl-tests (`bus_factor`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ddpprof.measures.collectives.collective_table import bus_factor
from ddpprof.measures.statistics.medians import first_quartile
from ddpprof.model import CollectiveKind
from ddpprof.model.netbench import CollectiveTimes, NetBench


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Speed for one message size."""

    num_bytes: int
    num_iterations: int
    median_ns: int
    least_ns: int
    most_ns: int
    cpu_ns: int
    """processor time of one rank, median over ranks"""
    bus_factor: float | None
    two_at_once: float | None
    """time until two are done, relative to that of one alone; ``None`` if not measured"""

    @property
    def algbw_bytes_per_s(self) -> float:
        return self.num_bytes * 1e9 / self.median_ns

    @property
    def busbw_bytes_per_s(self) -> float | None:
        return None if self.bus_factor is None else self.algbw_bytes_per_s * self.bus_factor


def measure_link(bench: NetBench) -> tuple[LinkSpeed, ...]:
    factor = bus_factor(CollectiveKind[bench.collective.upper()], bench.world_size)
    ratios = {
        times.num_bytes: first_quartile(times.both_ns) / first_quartile(times.alone_ns) for times in bench.concurrent
    }
    return tuple(_speed(times, factor, ratios.get(times.num_bytes)) for times in bench.sizes)


def is_disturbed(speeds: Sequence[LinkSpeed]) -> bool:
    """Return whether most sizes usually take more than twice their shortest time."""
    return sum(speed.median_ns > 2 * speed.least_ns for speed in speeds) > len(speeds) / 2


def _speed(times: CollectiveTimes, factor: float | None, two_at_once: float | None) -> LinkSpeed:
    return LinkSpeed(
        num_bytes=times.num_bytes,
        num_iterations=len(times.longest_ns),
        median_ns=round(median(times.longest_ns)),
        least_ns=min(times.longest_ns),
        most_ns=max(times.longest_ns),
        cpu_ns=round(median(times.cpu_ns)),
        bus_factor=factor,
        two_at_once=two_at_once,
    )
