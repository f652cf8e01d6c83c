"""Measures across ranks: collectives on all, their clocks, who waits for whom, and slowed kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ddpprof.model import DdpModule, RecordedStep
from ddpprof.report.rank_summary import RankSummary
from ddpprof.report.tree import AcrossRanks, LateGradients
from ddpprof.topics.collectives.matching import match_collectives
from ddpprof.topics.collectives.table import summarise_collectives
from ddpprof.topics.ranks.arrivals import measure_arrivals, summarise_waiting
from ddpprof.topics.ranks.clock import find_common_clock
from ddpprof.topics.ranks.late_gradients import find_late_gradients
from ddpprof.topics.ranks.stragglers import OwnTimePart, Stragglers, find_stragglers

RecordedSteps = Callable[[Sequence[int]], Mapping[int, Sequence[RecordedStep]]]
"""function for the recorded steps of ranks, without baseline steps: large data, needed for few ranks"""

_MOST_OTHERS = 63
"""most ranks to compare a straggler's gradients with, evenly chosen; their medians are close to those of all"""


def across_ranks(
    ranks: Sequence[RankSummary],
    together: Sequence[RankSummary],
    modules: Sequence[DdpModule],
    world_size: int | None,
    recorded: RecordedSteps,
) -> tuple[AcrossRanks, tuple[str, ...]]:
    """Return the measures of all ranks together, and descriptions of what does not match.

    `together`: ranks that average their gradients with each other, and so must keep pace.
    """
    traced = {one.rank: one.trace for one in ranks if one.trace is not None}
    known = [trace.collectives for trace in traced.values()]
    matched = match_collectives(known)
    clock = find_common_clock(known, matched)
    arrivals = measure_arrivals(known, matched, clock)
    stragglers = find_stragglers({one.rank: one.progress for one in together})
    sizes = {rank: trace.message_bytes for rank, trace in traced.items()}
    return (
        AcrossRanks(
            num_matched=len(matched),
            clock=clock,
            waiting=summarise_waiting(matched, arrivals, {rank: trace.exposed for rank, trace in traced.items()}),
            collectives=summarise_collectives(known, matched, arrivals, world_size, sizes),
            stragglers=stragglers,
            late_gradients=_late_gradients(together, modules, stragglers, recorded),
        ),
        matched.mismatches,
    )


def _late_gradients(
    ranks: Sequence[RankSummary], modules: Sequence[DdpModule], stragglers: Stragglers | None, recorded: RecordedSteps
) -> tuple[LateGradients, ...]:
    found = stragglers.stragglers if stragglers is not None else ()
    late = [one.rank for one in found if one.part in (OwnTimePart.BACKWARD, None)]
    if not late:
        return ()
    others = [one.rank for one in ranks if one.record is not None and one.rank not in late]
    every = max(1, -(-len(others) // _MOST_OTHERS))
    steps = recorded([*late, *others[::every]])
    gradients = {rank: find_late_gradients(modules, steps, rank) for rank in late}
    return tuple(LateGradients(rank, found) for rank, found in gradients.items() if found)
