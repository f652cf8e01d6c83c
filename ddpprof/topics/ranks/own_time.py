"""Measure how long a rank works on its own in a step, how long it waits in collectives, and which rank arrives last.

    own time of step k = from the end of step k-1's gradient communication, which all ranks reach together,
                         to the launch of step k's last gradient collective,
                         excluding the rank's waits for communication in between

Own time needs no common clock. It shows which rank is late, although all ranks take the same time per step because they
wait for the late rank. Waits are excluded because another rank causes them. For example, in the forward pass, all ranks
wait for the buffers of rank 0. The own time of a step after a gap in the trace starts with the step, so it lacks the
previous step's optimizer.

On CPU, a collective outside the backward pass counts as waiting from its call to its end, except for computation
during this time. Time that belongs to none of the parts below is waiting for gradients. On an accelerator, time in
which only communication runs is waiting. It counts as waiting for gradients only if the next kernel, such as the
optimizer's first one, has been launched but has not started. A gap before a kernel that was launched late belongs to
that kernel's phase.

    data        waiting for the DataLoader; on an accelerator, only while the device is idle
    forward     DistributedDataParallel.forward
    optimizer   Optimizer.step of the previous step
    backward    the rest after the first forward, including the loss and other code of the script
    other       the rest before the first forward

Arrivals at collectives:

    transfer    shortest duration of a collective over the ranks that were read: its duration on the last rank to arrive
    waiting     duration on a rank - transfer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.numbers import Number
from ddpprof.intervals import NO_SPANS, Spans, clip, intersect, merge, subtract, union, union_of
from ddpprof.model import UNKNOWN, CollectiveKind, Int64Column, Mark, Phase, Rank, RecordedStep, Step, Trace, Work
from ddpprof.topics.collective_matching import MatchedCollectives, RankCollectives
from ddpprof.topics.idle import BLOCK_ROWS, blocks_of
from ddpprof.topics.ranks.clock import CommonClock, common_ns
from ddpprof.topics.steps.overlap import marked_spans


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Times of one rank in one step, in ns. The parts add up to the rank's own time."""

    step: int
    is_traced: bool
    """True if the times are from a trace, False if they are from the light recorder, whose parts are slightly different
    and must not be compared with those of a trace
    """
    step_ns: int
    arrival_ns: int
    """time at which all gradients of the step are ready, on the rank's clock; in ns since 1970 if the trace
    contains the epoch of its clock
    """
    data_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    other_ns: int

    @property
    def own_ns(self) -> int:
        return self.data_ns + self.forward_ns + self.backward_ns + self.optimizer_ns + self.other_ns


def measure_progress(trace: Trace) -> tuple[StepProgress, ...]:
    """Measure every step of the trace with gradient communication."""
    parts = _device_parts(trace) if trace.device == "gpu" else _host_parts(trace)
    gradients = {index: rows for index in range(len(trace.steps)) if len(rows := _gradient_rows(trace, index))}
    arrivals = _arrivals(trace, gradients)
    found = []
    before: tuple[Step, int] | None = None
    for index, step in enumerate(trace.steps):
        if index not in gradients:
            before = None
            continue
        follows = before is not None and (before[0].number + 1, before[0].cycle) == (step.number, step.cycle)
        begin = before[1] if before is not None and follows else step.start_ns
        arrival = arrivals[index]
        before = (step, int(trace.collectives.end_ns[gradients[index]].max()))
        if arrival > begin:
            found.append(
                StepProgress(
                    step=step.number,
                    is_traced=True,
                    step_ns=step.duration_ns,
                    arrival_ns=arrival + (trace.epoch_ns or 0),
                    **parts.between(begin, arrival),
                )
            )
    return tuple(found)


def _gradient_rows(trace: Trace, step: int) -> NDArray[np.int64]:
    """Return the collectives launched in the backward pass.

    If there are none, as with a comm hook, return all collectives that were not launched in the forward pass.
    """
    comm = trace.collectives
    here = (comm.step == step) & (comm.kind != CollectiveKind.SEND_RECV)
    rows = np.flatnonzero(here & (comm.phase == Phase.BACKWARD))
    if len(rows) or trace.device == "cpu":
        return rows
    return np.flatnonzero(here & (comm.phase != Phase.FORWARD))


def _arrivals(trace: Trace, gradients: Mapping[int, NDArray[np.int64]]) -> dict[int, int]:
    """Return, by step, the time at which the last gradient collective is launched and its input is computed.

    The collective itself may start later if it queues behind other collectives. Collectives that a comm hook launches
    after the backward pass do not count, because they wait for other ranks. `gradients`: rows of the gradient
    collectives, by step.
    """
    comm, marks = trace.collectives, trace.host_spans
    backward = np.flatnonzero(marks.mark == Mark.BACKWARD)
    launched = comm.asked_ns
    last = np.empty(len(gradients), np.int64)
    for place, (step, rows) in enumerate(gradients.items()):
        ends = marks.end_ns[backward[marks.step[backward] == step]]
        in_backward = rows[launched[rows] <= ends.max()] if len(ends) else rows
        candidates = in_backward if len(in_backward) else rows
        last[place] = candidates[np.argmax(launched[candidates])]
    ready = launched[last]
    if trace.device == "gpu":
        ready = np.maximum(ready, _computed_by(trace.compute, ready))
    arrivals = np.minimum(ready, np.maximum(comm.start_ns[last], launched[last]))
    return dict(zip(gradients, arrivals.tolist(), strict=True))


def _computed_by(work: Work, times_ns: Int64Column) -> Int64Column:
    """Return, for each time, the end of all work launched before it; the smallest int64 if there is no such work."""
    order = np.argsort(times_ns)
    ends = np.full(len(times_ns) + 1, np.iinfo(np.int64).min)  # the last element is for work launched after all times
    for first in range(0, len(work), BLOCK_ROWS):
        some = slice(first, first + BLOCK_ROWS)
        np.maximum.at(ends, np.searchsorted(times_ns[order], work.launched_ns[some]), work.end_ns[some])
    computed = np.empty_like(times_ns)
    computed[order] = np.maximum.accumulate(ends[:-1])
    return computed


@dataclass(frozen=True, slots=True)
class _Parts:
    """Spans of each part in the whole trace. Where parts overlap, only the part whose field comes first counts."""

    waiting: Spans
    data: Spans
    forward: Spans
    optimizer: Spans

    def between(self, begin: int, end: int) -> dict[str, int]:
        """Return how long each part of the rank's own time took, by field of `StepProgress`."""
        forward = _within(self.forward, begin, end)
        left = subtract(Spans(np.array([begin]), np.array([end])), _within(self.waiting, begin, end))
        parts = {"data_ns": _within(self.data, begin, end), "forward_ns": forward}
        parts["optimizer_ns"] = _within(self.optimizer, begin, end)
        lengths = {}
        for name, part in parts.items():
            rest = subtract(left, part)
            lengths[name] = left.total_ns - rest.total_ns
            left = rest
        first_forward = int(forward.start_ns[0]) if len(forward) else end
        other_ns = clip(left, begin, first_forward).total_ns
        return {**lengths, "backward_ns": left.total_ns - other_ns, "other_ns": other_ns}


def _within(spans: Spans, begin: int, end: int) -> Spans:
    """Return the spans clipped to [begin, end]. Faster than `clip` for a long trace."""
    first = np.searchsorted(spans.end_ns, begin, side="right")
    last = np.searchsorted(spans.start_ns, end, side="left")
    return clip(Spans(spans.start_ns[first:last], spans.end_ns[first:last]), begin, end)


def _host_parts(trace: Trace) -> _Parts:
    comm = trace.collectives
    computes = union_of(trace.compute)
    marks = (Mark.DATA, Mark.FORWARD, Mark.OPTIMIZER, Mark.BACKWARD)
    data, forward, optimizer, backward = (marked_spans(trace, mark) for mark in marks)
    gradients = comm.phase == Phase.BACKWARD
    waits_for_gradients = union_of(comm, gradients)
    for busy in (computes, data, forward, optimizer, backward):
        waits_for_gradients = subtract(waits_for_gradients, busy)
    called = comm.asked_ns
    waits_in_calls = subtract(union(called[~gradients], comm.end_ns[~gradients]), computes)
    return _Parts(merge(waits_in_calls, waits_for_gradients), data, forward, optimizer)


def _device_parts(trace: Trace) -> _Parts:
    comm = trace.collectives
    is_gradient = comm.phase == Phase.BACKWARD
    gradients = union_of(comm, is_gradient)
    waits_for_others = union_of(comm, ~is_gradient)
    data = marked_spans(trace, Mark.DATA)
    waits_for_gradients, forward, optimizer = [NO_SPANS], [NO_SPANS], [NO_SPANS]
    reached_before: int | None = None
    for block in blocks_of(trace.compute, trace.copies):
        start, end, launched, phase = block.start_ns, block.end_ns, block.launched_ns, block.phase
        busy = union(start, end)
        data, waits_for_others = subtract(data, busy), subtract(waits_for_others, busy)
        # The time since the end of the previous row counts as part of each row: it was launched late, or waited.
        first = int(start[0]) if reached_before is None else reached_before
        reached = np.maximum(np.maximum.accumulate(end), first)
        begin = np.append(first, reached[:-1])
        held_up = union(np.where(launched == UNKNOWN, begin, np.maximum(begin, launched)), start)
        waits_for_gradients.append(intersect(gradients, held_up))
        for parts, which in ((forward, Phase.FORWARD), (optimizer, Phase.OPTIMIZER)):
            parts.append(union(begin[phase == which], reached[phase == which]))
        reached_before = int(reached[-1])
    return _Parts(
        waiting=_joined([*waits_for_gradients, waits_for_others]),
        data=data,
        forward=_joined(forward),
        optimizer=_joined(optimizer),
    )


def _joined(parts: Sequence[Spans]) -> Spans:
    return union(np.concatenate([part.start_ns for part in parts]), np.concatenate([part.end_ns for part in parts]))


def progress_of_rank(rank: Rank) -> tuple[StepProgress, ...]:
    """Return the rank's steps from its trace and, on CPU, from light recording, in ascending order.

    On an accelerator, light recording has only the times at which work was queued, and these times may include waiting.
    """
    traced = measure_progress(rank.trace) if rank.trace is not None else ()
    numbers = {row.step for row in traced}
    record = rank.record
    recorded = [
        row
        for step in (record.steps if record is not None and record.device == "cpu" else ())
        if step.number not in numbers and (row := measure_recorded_progress(step)) is not None
    ]
    return tuple(sorted([*traced, *recorded], key=lambda row: row.step))


def measure_recorded_progress(step: RecordedStep) -> StepProgress | None:
    """Measure the step; return ``None`` if no gradients became ready, or if only its duration was recorded."""
    last_ready = [ns for one in step.passes if (ns := one.last_ready_ns) is not None]
    if not last_ready or not step.forwards:
        return None
    forward = _spans([(f.start_ns, f.end_ns) for f in step.forwards], step)
    optimizer = _spans(list(step.optimizers), step)
    sync = sum(f.buffer_sync_ns for f in step.forwards)
    forward_ns = max(0, forward.total_ns - sync)
    own = step.end_ns - step.start_ns - sync - _waiting(step, last_ready)
    data = step.data_ns or 0
    last_end = int(optimizer.end_ns[-1]) if len(optimizer) else step.end_ns
    after = max(0, step.end_ns - max(last_end, *last_ready))
    other = max(0, min(f.start_ns for f in step.forwards) - step.start_ns + after - data)
    return StepProgress(
        step=step.number,
        is_traced=False,
        step_ns=step.end_ns - step.start_ns,
        arrival_ns=max(last_ready),
        data_ns=data,
        forward_ns=forward_ns,
        backward_ns=max(0, own - data - forward_ns - optimizer.total_ns - other),
        optimizer_ns=optimizer.total_ns,
        other_ns=other,
    )


def _spans(spans: list[tuple[int, int]], step: RecordedStep) -> Spans:
    times = np.array(spans, np.int64).reshape(-1, 2)
    return clip(union(times[:, 0], times[:, 1]), step.start_ns, step.end_ns)


def _waiting(step: RecordedStep, last_ready: list[int]) -> int:
    begins = sorted([*(f.start_ns for f in step.forwards), *(start for start, _ in step.optimizers), step.end_ns])
    waits: dict[int, int] = {}
    for ready in sorted(last_ready):
        # If several modules share one backward pass, the last gradient of all modules counts.
        waits[next((begin for begin in begins if begin >= ready), ready)] = ready
    return sum(begin - ready for begin, ready in waits.items())


_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals at the matched collectives: one line per collective, in the order of ``MatchedCollectives``."""

    ranks: tuple[int, ...]
    waiting_ns: Int64Column
    """[n, num_ranks]: waiting time, or `UNKNOWN` if the rank does not have the collective"""
    start_ns: Int64Column
    """[n, num_ranks]: start on the rank's own clock; 0 if the rank does not have the collective"""
    last_rank: NDArray[np.int32] | None
    """[n]: rank that arrived last, or `UNKNOWN` if several ranks did; ``None`` if the ranks have no common clock"""


@dataclass(frozen=True, slots=True)
class RankWaiting:
    """Waiting time of one rank over all collectives and steps."""

    rank: int
    num_collectives: Annotated[int, Number("number of collectives matched with other ranks")]
    num_last: Annotated[int | None, Number("number of matched collectives in which the rank arrived last")]
    """the number is ``None`` if the ranks have no common clock"""
    median_waiting_ns: int
    """median waiting time in one collective"""
    waiting_per_step_ns: Annotated[int | None, Number("time spent waiting for other ranks per step, median")]
    """median waiting time per step; time in several collectives at once counts once; ``None`` without steps"""
    total_waiting_ns: int
    exposed_waiting_ns: Annotated[int | None, Number("mean waiting time per step with no computation running")] = None


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


def summarize_waiting(
    matched: MatchedCollectives, arrivals: Arrivals, exposed: Mapping[int, Spans] | None = None
) -> tuple[RankWaiting, ...]:
    """Summarize every rank with a matched collective.

    `exposed`: exposed communication by rank, on the rank's own clock.
    """
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
