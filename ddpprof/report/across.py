"""What is measured across ranks: one collective on all of them, their clocks, who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from ddpprof.events import Collectives, DdpModule, Rank
from ddpprof.intervals import Spans
from ddpprof.measures.arrivals import measure_arrivals, summarise_waiting
from ddpprof.measures.buckets import bucket_rows
from ddpprof.measures.candidates import RankCollectives, rank_collectives
from ddpprof.measures.clock import find_common_clock
from ddpprof.measures.collective_table import summarise_collectives
from ddpprof.measures.late_gradients import find_late_gradients
from ddpprof.measures.matching import match_collectives
from ddpprof.measures.overlap import spans_of
from ddpprof.measures.recorded_progress import progress_of_rank
from ddpprof.measures.stragglers import Part, Stragglers, find_stragglers
from ddpprof.report.ranks import baseline_steps, training_steps
from ddpprof.report.tree import AcrossRanks, ClockReport, LateGradients


def across_ranks(
    ranks: Sequence[Rank], modules: Sequence[DdpModule], world_size: int | None
) -> tuple[AcrossRanks, tuple[str, ...]]:
    """What the ranks tell together, and what does not fit, in words."""
    known = [one for one in map(_of_training_steps, ranks) if one is not None]
    matched = match_collectives(known)
    clock = find_common_clock(known, matched)
    arrivals = measure_arrivals(known, matched, clock)
    sizes = {rank.rank: bucket_sizes(rank, modules) for rank in ranks}
    stragglers = find_stragglers({rank.rank: progress_of_rank(rank) for rank in ranks})
    table = summarise_collectives(known, matched, arrivals, world_size, sizes)
    return (
        AcrossRanks(
            num_matched=len(matched),
            clock=None if clock is None else ClockReport(clock.at_ns, clock.ranks, clock.hosts()),
            waiting=summarise_waiting(matched, arrivals, _compute(ranks)),
            collectives=table,
            stragglers=stragglers,
            late_gradients=_late_gradients(ranks, modules, stragglers),
        ),
        matched.mismatches,
    )


def _compute(ranks: Sequence[Rank]) -> dict[int, Spans]:
    return {rank.rank: spans_of(rank.trace.compute, None) for rank in ranks if rank.trace is not None}


def _of_training_steps(rank: Rank) -> RankCollectives | None:
    """Those of steps without gradient communication say nothing of the training."""
    one = rank_collectives(rank)
    if one is None or not (left_out := baseline_steps(rank)):
        return one
    comm = one.collectives
    kept = ~np.isin(comm.step, left_out)
    return replace(one, collectives=Collectives(*(getattr(comm, column.name)[kept] for column in fields(Collectives))))


def bucket_sizes(rank: Rank, modules: Sequence[DdpModule]) -> dict[int, int]:
    """Row → bytes of the gradient all-reduces, whose sizes gloo's spans have only where shapes were recorded."""
    if rank.trace is None or rank.record is None:
        return {}
    kept = ~np.isin(rank.trace.collectives.step, baseline_steps(rank))
    row_of = np.cumsum(kept) - 1  # in the table of `_of_training_steps`
    sizes = {}
    for step in rank.record.steps:
        for (module, bucket), row in bucket_rows(modules, step, rank.trace).items():
            parameters = modules[module].parameters
            sizes[int(row_of[row])] = sum(parameters[index].num_bytes for index in modules[module].buckets[bucket])
    return sizes


def _late_gradients(
    ranks: Sequence[Rank], modules: Sequence[DdpModule], stragglers: Stragglers | None
) -> tuple[LateGradients, ...]:
    steps = {rank.rank: training_steps(rank.record) for rank in ranks if rank.record is not None}
    late = []
    for straggler in stragglers.stragglers if stragglers is not None else ():
        gradients = find_late_gradients(modules, steps, straggler.rank)
        if gradients and straggler.part in (Part.BACKWARD, None):
            late.append(LateGradients(straggler.rank, gradients))
    return tuple(late)
