"""The contribution of each rank to a report: a few kilobytes, derived from traces and records, which are then not
needed.

A summary is first made for a single rank, independently of all others, so that processes and machines can share the
work. Summaries merge in any order and grouping, with bit-identical results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ddpprof.engine.packing import decode
from ddpprof.engine.topic import Topic
from ddpprof.model import DdpModule, Rank
from ddpprof.report.topics import measure_topics
from ddpprof.topics.facts import FACTS, RankFacts, RecordSummary
from ddpprof.topics.kernels import MOST_KERNELS, KernelSummary, summarise_kernels
from ddpprof.topics.overlap_slowdown.measure import OverlapSlowdown, measure_slowdown, merge_slowdowns, thinned

_OfRank = TypeVar("_OfRank")


@dataclass(frozen=True)
class RankSummary:
    rank: int
    world_size: int | None
    measured: Mapping[str, bytes]
    """topic name → its measures; see `measure_topics`"""

    def of(self, topic: Topic[_OfRank, Any]) -> _OfRank | None:
        """Return what a topic measured of the rank; ``None`` if nothing."""
        return decode(self.measured[topic.name], topic.rank_type) if topic.name in self.measured else None

    @cached_property
    def facts(self) -> RankFacts:
        return self.of(FACTS) or RankFacts(None, None)

    @property
    def record(self) -> RecordSummary | None:
        return self.facts.record

    @property
    def host(self) -> str | None:
        trace = self.facts.trace
        return self.record.facts.host if self.record else trace.host if trace else None


def of_each(topic: Topic[_OfRank, Any], ranks: Iterable[RankSummary]) -> dict[int, _OfRank]:
    """Return what a topic measured, by rank."""
    found = ((one.rank, one.of(topic)) for one in ranks)
    return {rank: of_rank for rank, of_rank in found if of_rank is not None}


@dataclass(frozen=True, slots=True)
class RunSummary:
    ranks: tuple[RankSummary, ...] = ()
    """ranks in ascending order"""
    overlap_slowdown: OverlapSlowdown | None = None
    """``None`` if none of them has a trace"""
    kernels: tuple[KernelSummary, ...] = ()
    """kernels that take the most time on rank `kernels_of`"""
    kernels_of: int | None = None
    """lowest rank with steps; ``None`` if no rank has any"""
    missing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """rank → description of its data that could not be read"""


def summarise_rank(rank: Rank, modules: Sequence[DdpModule]) -> RunSummary:
    """Summarise one rank. `modules`: those of the job, which are the same on all ranks."""
    trace, steps = rank.trace, rank.measured_step_indices
    slowdown = measure_slowdown(trace, steps, rank.baseline_step_indices) if trace is not None else None
    return RunSummary(
        ranks=(RankSummary(rank.rank, rank.world_size, measure_topics(rank, steps, modules)),),
        overlap_slowdown=thinned(slowdown) if slowdown is not None else None,
        kernels=summarise_kernels(trace, steps)[:MOST_KERNELS] if trace is not None and steps else (),
        kernels_of=rank.rank if steps else None,
    )


def merge_summaries(summaries: Sequence[RunSummary]) -> RunSummary:
    """Merge summaries of disjoint ranks."""
    slowdowns = [one.overlap_slowdown for one in summaries if one.overlap_slowdown is not None]
    with_steps = [one for one in summaries if one.kernels_of is not None]
    first = min(with_steps, key=lambda one: one.kernels_of or 0, default=None)
    return RunSummary(
        ranks=tuple(sorted((rank for one in summaries for rank in one.ranks), key=lambda rank: rank.rank)),
        overlap_slowdown=merge_slowdowns(slowdowns) if slowdowns else None,
        kernels=first.kernels if first is not None else (),
        kernels_of=first.kernels_of if first is not None else None,
        missing=dict(sorted(pair for one in summaries for pair in one.missing.items())),
    )
