"""Steps of several ranks over time, on one clock, as drawn on the report page, in the terminal and in Perfetto."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

import numpy as np

from ddpprof.files import Location, location
from ddpprof.model import Rank, Step
from ddpprof.report.tree import Report
from ddpprof.topics.buckets.steps import BucketStep
from ddpprof.topics.ranks.clock import CommonClock, common_ns
from ddpprof.topics.steps.timeline import StepTimeline, bucket_span, move_timeline, step_timeline


@dataclass(frozen=True, slots=True, eq=False)
class RankTimeline:
    rank: int
    device: str
    """``"cpu"`` or ``"gpu"``"""
    names: tuple[str, ...]
    """names of kernels, ops and collectives; tables contain indices into this list"""
    on_common_clock: bool
    """True if its times can be compared with those of other ranks; otherwise they use its host's clock, see
    `_set_beside`"""
    numbers: tuple[int, ...]
    """numbers of its steps"""
    steps: Sequence[StepTimeline]
    """timelines from `draw_timeline` are drawn on each access, because all at once may not fit into memory"""


class StepsToDraw(Sequence[StepTimeline]):
    def __init__(self, draw: Callable[[int], StepTimeline], indices: Sequence[int]) -> None:
        """Set the function that draws the step with an index, and the indices."""
        self._draw = draw
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, at: int) -> StepTimeline: ...

    @overload
    def __getitem__(self, at: slice) -> StepsToDraw: ...

    def __getitem__(self, at: int | slice) -> StepTimeline | StepsToDraw:
        if isinstance(at, slice):
            return StepsToDraw(self._draw, self._indices[at])
        return self._draw(self._indices[at])


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Times are ns on the clock of the first rank, and since 1970 if the traces have their epoch."""

    ranks: tuple[RankTimeline, ...]
    clock_error_ns: int | None
    """maximum error of times of one rank relative to another; ``None`` for one rank, or if unknown"""


@dataclass(frozen=True, slots=True)
class DrawnRank:
    """Data about a rank's steps that is known before any step is drawn."""

    rank: int
    device: str
    names: tuple[str, ...]
    epoch_ns: int | None
    steps: tuple[Step, ...]
    """steps of the trace"""
    measured: tuple[int, ...]
    """indices of the steps that the report measures"""
    files: tuple[str, ...] = ()
    """`file_name` of each of the trace's files, in order of time"""


@dataclass(frozen=True, slots=True)
class Drawing:
    """One rank's steps. They may be on disk, so that only the requested ones are read."""

    about: DrawnRank
    draw: Callable[[int], StepTimeline]
    """function from a step's index to its timeline, with the trace's own times and without buckets"""


def file_name(path: Location) -> str:
    """Return the last part of a path, as text that can be kept even if it is not valid UTF-8."""
    return path.name.encode("utf-8", "backslashreplace").decode()


def drawing_of(rank: Rank) -> Drawing | None:
    """Return the rank's drawing; ``None`` without a trace."""
    trace = rank.trace
    if trace is None:
        return None
    about = DrawnRank(
        rank.rank, trace.device, trace.names, trace.epoch_ns, trace.steps, tuple(rank.measured_step_indices),
        tuple(file_name(location(path)) for path in trace.files),
    )  # fmt: skip
    return Drawing(about, partial(step_timeline, trace))


def draw_timeline(
    drawings: Sequence[Drawing],
    report: Report,
    buckets: Mapping[int, Sequence[BucketStep]],
    steps: Container[int] | None = None,
) -> Timeline:
    """Draw the profiled steps that the report measures, or only those with these numbers. `buckets`: by rank."""
    clock = report.across.clock if report.across is not None else None
    sizes = {(row.module, row.index): row.num_bytes for row in report.buckets}
    moves = _set_beside([drawing.about for drawing in drawings], clock)
    timelines = tuple(
        _of_rank(drawing, clock, moves[rank], buckets.get(rank, ()), sizes, steps)
        for drawing in drawings
        for rank in [drawing.about.rank]
    )
    return Timeline(timelines, _clock_error(clock, [drawing.about.rank for drawing in drawings]))


def _of_rank(
    drawing: Drawing,
    clock: CommonClock | None,
    beside_ns: int,
    buckets: Sequence[BucketStep],
    sizes: Mapping[tuple[int, int], int | None],
    steps: Container[int] | None,
) -> RankTimeline:
    about = drawing.about

    def draw(index: int) -> StepTimeline:
        moved = _moved_ns(about, clock, about.steps[index].start_ns) + beside_ns
        spans = tuple(
            bucket_span(row, sizes.get((row.module, row.index)), moved - (about.epoch_ns or 0))
            for row in buckets
            if row.step == about.steps[index].number
        )
        return move_timeline(drawing.draw(index), moved, spans)

    chosen = [index for index in about.measured if steps is None or about.steps[index].number in steps]
    return RankTimeline(
        rank=about.rank,
        device=about.device,
        names=about.names,
        on_common_clock=_is_on(clock, about.rank),
        numbers=tuple(about.steps[index].number for index in chosen),
        steps=StepsToDraw(draw, chosen),
    )


def _is_on(clock: CommonClock | None, rank: int) -> bool:
    return clock is not None and clock.find(rank) is not None


def _set_beside(ranks: Sequence[DrawnRank], clock: CommonClock | None) -> dict[int, int]:
    """Return, by rank, a further shift of its times; 0 on the common clock.

    Ranks of a job run at the same time. If a host's clock contradicts this, it is ignored: the first step that the rank
    shares with the first rank of the clock is then made to begin at the same time.
    """
    moves, first, until = dict.fromkeys((one.rank for one in ranks), 0), None, 0
    for one in sorted(ranks, key=lambda one: not _is_on(clock, one.rank)):
        begins = {step.number: step.start_ns + _moved_ns(one, clock, step.start_ns) for step in one.steps}
        if not begins:
            continue
        last = one.steps[-1]
        end = begins[last.number] + last.end_ns - last.start_ns
        if first is None:
            first, until = begins, end
        elif not _is_on(clock, one.rank) and (min(begins.values()) >= until or end <= min(first.values())):
            both = sorted(begins.keys() & first.keys())
            there, here = (first[both[0]], begins[both[0]]) if both else (min(first.values()), min(begins.values()))
            moves[one.rank] = there - here
    return moves


def _moved_ns(rank: DrawnRank, clock: CommonClock | None, at_ns: int) -> int:
    """Return the shift of times near `at_ns`; the drift within one step is less than the clock's error."""
    epoch = rank.epoch_ns or 0
    own = clock.find(rank.rank) if clock is not None else None
    if own is None or clock is None:
        return epoch
    return int(common_ns(clock.at_ns, own, np.array([at_ns + epoch], np.int64))[0]) - at_ns


def _clock_error(clock: CommonClock | None, ranks: Sequence[int]) -> int | None:
    bounds = [one.bound_ns for one in clock.ranks if one.rank in ranks] if clock is not None else []
    if len(bounds) < 2 or len(bounds) < len(ranks):
        return None
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None
