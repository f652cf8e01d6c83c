"""Measure how long each rank waits in collectives, and which rank arrives last.

transfer = shortest duration of a collective over the ranks that were read, which is that of the last rank to arrive
waiting  = duration on a rank - transfer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.numbers import Number
from ddpprof.intervals import Spans, intersect, union
from ddpprof.model import UNKNOWN, Int64Column
from ddpprof.topics.collective_matching import MatchedCollectives, RankCollectives
from ddpprof.topics.ranks.clock import CommonClock, common_ns

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals at the matched collectives, one line per collective, in the order of ``MatchedCollectives``."""

    ranks: tuple[int, ...]
    waiting_ns: Int64Column
    """[n, num_ranks], or `UNKNOWN` if the rank does not have the collective"""
    start_ns: Int64Column
    """[n, num_ranks], on each rank's own clock; 0 if the rank does not have the collective"""
    last_rank: NDArray[np.int32] | None
    """[n], or `UNKNOWN` if several ranks arrived last; ``None`` without a common clock of all ranks"""


@dataclass(frozen=True, slots=True)
class RankWaiting:
    """Waiting time of one rank over all collectives and steps."""

    rank: int
    num_collectives: Annotated[int, Number("number of collectives matched with other ranks")]
    num_last: Annotated[int | None, Number("number of these in which the rank arrived last")]
    """``None`` without a common clock"""
    median_waiting_ns: int
    """median waiting time in one collective"""
    waiting_per_step_ns: Annotated[int | None, Number("time spent waiting for other ranks per step, median")]
    """waiting time per step, with concurrent collectives counted once; median over steps; ``None`` without steps"""
    total_waiting_ns: int
    exposed_waiting_ns: Annotated[int | None, Number("waiting per step without computation, mean")] = None


def measure_arrivals(
    ranks: Sequence[RankCollectives], matched: MatchedCollectives, clock: CommonClock | None
) -> Arrivals:
    known = matched.rows != UNKNOWN
    duration = matched.gather(ranks, lambda one: one.collectives.end_ns - one.collectives.start_ns)
    transfer = np.where(known, duration, _NEVER).min(axis=1, initial=_NEVER)
    return Arrivals(
        ranks=matched.ranks,
        waiting_ns=np.where(known, duration - transfer[:, None], UNKNOWN),
        start_ns=matched.gather(ranks, lambda one: one.collectives.start_ns),
        last_rank=_last_ranks(ranks, matched, clock) if clock is not None else None,
    )


def summarise_waiting(
    matched: MatchedCollectives, arrivals: Arrivals, exposed: Mapping[int, Spans] | None = None
) -> tuple[RankWaiting, ...]:
    """Summarise every rank with a matched collective. `exposed`: rank → exposed communication, on its own clock."""
    found = []
    for column, rank in enumerate(arrivals.ranks):
        mine = np.flatnonzero(arrivals.waiting_ns[:, column] != UNKNOWN)
        if len(mine):
            waiting, step = arrivals.waiting_ns[mine, column], matched.step[mine]
            start, last = arrivals.start_ns[mine, column], arrivals.last_rank
            found.append(
                RankWaiting(
                    rank=rank,
                    num_collectives=len(mine),
                    num_last=int((last[mine] == rank).sum()) if last is not None else None,
                    median_waiting_ns=round(float(np.median(waiting))),
                    waiting_per_step_ns=_per_step(start, waiting, step),
                    total_waiting_ns=int(waiting.sum()),
                    exposed_waiting_ns=_exposed(start, waiting, step, exposed[rank]) if exposed else None,
                )
            )
    return tuple(found)


def _last_ranks(
    ranks: Sequence[RankCollectives], matched: MatchedCollectives, clock: CommonClock
) -> NDArray[np.int32] | None:
    known = matched.rows != UNKNOWN
    start = matched.gather(ranks, lambda one: one.collectives.start_ns + (one.epoch_ns or 0))
    for column, number in enumerate(matched.ranks):
        of_rank = clock.find(number)
        if of_rank is not None:
            start[:, column] = common_ns(clock.at_ns, of_rank, start[:, column])
        elif known[:, column].any():
            return None
    last = np.where(known, start, -_NEVER)
    if not len(matched):
        return np.empty(0, np.int32)
    is_alone = (last == last.max(axis=1, keepdims=True)).sum(axis=1) == 1
    numbers = np.array(matched.ranks, np.int32)[last.argmax(axis=1)]
    return np.where(is_alone, numbers, UNKNOWN).astype(np.int32)


def _per_step(start: Int64Column, waiting: Int64Column, step: Int64Column) -> int | None:
    numbers = np.unique(step[step != UNKNOWN]).tolist()
    if not numbers:
        return None
    in_step = [np.flatnonzero(step == number) for number in numbers]
    return round(median(union(start[rows], start[rows] + waiting[rows]).total_ns for rows in in_step))


def _exposed(start: Int64Column, waiting: Int64Column, step: Int64Column, exposed: Spans) -> int | None:
    in_step = np.flatnonzero(step != UNKNOWN)
    if not len(in_step):
        return None
    waits = union(start[in_step], start[in_step] + waiting[in_step])
    return round(intersect(waits, exposed).total_ns / len(np.unique(step[in_step])))
