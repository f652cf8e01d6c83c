"""Steps of several ranks as they went on, on one clock: what the report page, the terminal and Perfetto draw."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.events import DdpModule, Rank, Run, Trace
from ddpprof.measures.buckets import BucketStep, measure_buckets
from ddpprof.measures.clock import common_ns
from ddpprof.measures.timeline import StepTimeline, step_timeline
from ddpprof.measures.traced_buckets import trace_buckets
from ddpprof.report.ranks import modules_of, training_steps, whole_steps
from ddpprof.report.tree import ClockReport, Report


@dataclass(frozen=True, slots=True, eq=False)
class RankTimeline:
    rank: int
    device: str
    """``"cpu"`` or ``"gpu"``"""
    names: tuple[str, ...]
    """of kernels, ops and collectives: tables hold indices into it"""
    on_common_clock: bool
    """whether its times can be compared with other ranks'; without: by its host's clock, see `_set_beside`"""
    steps: tuple[StepTimeline, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Times are ns on the clock of the first rank; nanoseconds since 1970 where the traces say."""

    ranks: tuple[RankTimeline, ...]
    clock_error_ns: int | None
    """two ranks' times differ from the truth by at most this; ``None``: one rank, or not known"""


def build_timeline(
    run: Run, report: Report, steps: Container[int] | None = None, ranks: Container[int] | None = None
) -> Timeline:
    """Of the steps and ranks with these numbers, or of all: profiled steps that the report measures."""
    chosen = [rank for rank in run.ranks if rank.trace is not None and (ranks is None or rank.rank in ranks)]
    modules = modules_of(run.ranks)
    buckets = _buckets(run.ranks, modules, chosen, steps)
    clock = report.across.clock if report.across is not None else None
    sizes = {(row.module, row.index): row.num_bytes for row in report.buckets}
    moves = _set_beside([(rank.rank, rank.trace) for rank in chosen if rank.trace is not None], clock)
    timelines = tuple(
        _of_rank(rank, rank.trace, clock, moves[rank.rank], buckets, sizes, steps)
        for rank in chosen
        if rank.trace is not None
    )
    return Timeline(timelines, _clock_error(clock, [rank.rank for rank in chosen]))


_Buckets = dict[tuple[int, int], list[BucketStep]]
"""by rank and step"""


def _buckets(
    ranks: Sequence[Rank], modules: Sequence[DdpModule], chosen: Sequence[Rank], steps: Container[int] | None
) -> _Buckets:
    """From the recorder's facts; without them, as far as the traces of all ranks show."""
    found: _Buckets = {}
    if not modules:
        traced = trace_buckets({rank.rank: rank.trace for rank in ranks if rank.trace is not None}, one_clock=False)
        for number, rows in traced.ranks.items():
            for row in rows:
                found.setdefault((number, row.step), []).append(row)
        return found
    for rank in chosen:
        for step in training_steps(rank.record):
            if steps is None or step.number in steps:
                found[rank.rank, step.number] = list(measure_buckets(modules, step, rank.trace))
    return found


def _of_rank(
    rank: Rank,
    trace: Trace,
    clock: ClockReport | None,
    beside_ns: int,
    buckets: _Buckets,
    sizes: dict[tuple[int, int], int | None],
    steps: Container[int] | None,
) -> RankTimeline:
    timelines = []
    for index in whole_steps(trace, training_steps(rank.record)):
        number = trace.steps[index].number
        if steps is None or number in steps:
            rows = buckets.get((rank.rank, number), [])
            of_rows = [sizes.get((row.module, row.index)) for row in rows]
            moved = _moved_ns(rank.rank, trace, clock, trace.steps[index].start_ns) + beside_ns
            timelines.append(step_timeline(trace, index, moved, rows, of_rows))
    return RankTimeline(rank.rank, trace.device, trace.names, _is_on(clock, rank.rank), tuple(timelines))


def _is_on(clock: ClockReport | None, rank: int) -> bool:
    return clock is not None and any(one.rank == rank for one in clock.ranks)


def _set_beside(traces: Sequence[tuple[int, Trace]], clock: ClockReport | None) -> dict[int, int]:
    """By rank, what else to add to its times: 0 on the common clock.

    Ranks of a job run together. Where a host's clock says that they did not, it is no help: then the first step that
    the rank has in common with the first rank of the clock begins with that.
    """
    moves, first, until = dict.fromkeys((rank for rank, _ in traces), 0), None, 0
    for rank, trace in sorted(traces, key=lambda one: not _is_on(clock, one[0])):
        begins = {step.number: step.start_ns + _moved_ns(rank, trace, clock, step.start_ns) for step in trace.steps}
        if not begins:
            continue
        last = trace.steps[-1]
        end = begins[last.number] + last.end_ns - last.start_ns
        if first is None:
            first, until = begins, end
        elif not _is_on(clock, rank) and (min(begins.values()) >= until or end <= min(first.values())):
            both = sorted(begins.keys() & first.keys())
            there, here = (first[both[0]], begins[both[0]]) if both else (min(first.values()), min(begins.values()))
            moves[rank] = there - here
    return moves


def _moved_ns(rank: int, trace: Trace, clock: ClockReport | None, at_ns: int) -> int:
    """What to add to times near `at_ns`: the drift within one step is less than the clock's error."""
    epoch = trace.epoch_ns or 0
    own = next((one for one in clock.ranks if one.rank == rank), None) if clock is not None else None
    if own is None or clock is None:
        return epoch
    return int(common_ns(clock.at_ns, own, np.array([at_ns + epoch], np.int64))[0]) - at_ns


def _clock_error(clock: ClockReport | None, ranks: Sequence[int]) -> int | None:
    bounds = [one.bound_ns for one in clock.ranks if one.rank in ranks] if clock is not None else []
    if len(bounds) < 2 or len(bounds) < len(ranks):
        return None
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None
