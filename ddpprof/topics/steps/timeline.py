"""Timelines of single steps: spans of computation, communication and buckets on each rank, on a common clock.

All times of a step are shifted by the same amount, so durations agree with the other measures, such as exposed
communication.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import overload

import numpy as np

from ddpprof.engine.topic import ReportView
from ddpprof.files import Location, location
from ddpprof.intervals import Spans, intersect, merge, shift, subtract
from ddpprof.layout import PARTS, Lane, Lanes, LaneSpan, Section, in_ms, notes
from ddpprof.model import Collectives, Rank, Step, Trace, Work
from ddpprof.model.tables import moved, rows_of
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.buckets.steps import BucketStep
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.ranks.clock import CommonClock, common_ns
from ddpprof.topics.steps.breakdown import Breakdown, split_step
from ddpprof.topics.steps.overlap import spans_of, trailing_spans
from ddpprof.topics.steps.view import typical_step


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """Times of one gradient bucket; unknown values are ``None``."""

    module: int
    index: int
    num_bytes: int | None
    ready_ns: int | None
    launched_ns: int | None
    started_ns: int | None
    finished_ns: int | None
    pass_index: int = 0
    """index of the backward pass among the step's synchronized backward passes through the module"""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeline:
    step: int
    start_ns: int
    end_ns: int
    """end of the step. Start and end are as in the step bar: on an accelerator, the step starts with its first kernel
    """
    parts: tuple[Spans, ...] | None
    """spans of each part, in the order of the fields of `Breakdown`; the spans do not overlap. ``None`` if the step has
    no device work
    """
    compute: Work
    copies: Work
    collectives: Collectives
    overlap: Spans
    exposed: Spans
    trailing: Spans | None
    """communication after the backward pass; ``None`` if the step has no backward pass"""
    buckets: tuple[BucketSpan, ...]

    def named_parts(self) -> Mapping[str, Spans]:
        """Return `parts` by the field names of `Breakdown` without the suffix ``_ns``; empty if there are none."""
        names = [field.name.removesuffix("_ns") for field in fields(Breakdown)]
        return {} if self.parts is None else dict(zip(names, self.parts, strict=True))


def step_timeline(trace: Trace, step: int) -> StepTimeline:
    """Return a step's timeline with the trace's own times, without buckets. `step`: index into ``trace.steps``."""
    compute, comm = spans_of(trace.compute, step), spans_of(trace.collectives, step)
    split, whole = split_step(trace, step), trace.steps[step]
    parts = None if split is None else tuple(reduce(merge, part) for part in split.parts)
    begun = [int(spans.start_ns[0]) for spans in parts or () if len(spans)]
    ended = [int(spans.end_ns[-1]) for spans in parts or () if len(spans)]
    return StepTimeline(
        step=whole.number,
        start_ns=min(begun, default=whole.start_ns),
        end_ns=max(ended, default=whole.end_ns),
        parts=parts,
        compute=rows_of(trace.compute, trace.compute.step == step),
        copies=rows_of(trace.copies, trace.copies.step == step),
        collectives=rows_of(trace.collectives, trace.collectives.step == step),
        overlap=intersect(comm, compute),
        exposed=subtract(comm, compute),
        trailing=trailing_spans(trace, step),
        buckets=(),
    )


def move_timeline(step: StepTimeline, moved_ns: int, buckets: tuple[BucketSpan, ...]) -> StepTimeline:
    """Return the timeline shifted by `moved_ns`, with the given buckets."""
    return replace(
        step,
        start_ns=step.start_ns + moved_ns,
        end_ns=step.end_ns + moved_ns,
        parts=None if step.parts is None else tuple(shift(part, moved_ns) for part in step.parts),
        compute=moved(step.compute, moved_ns),
        copies=moved(step.copies, moved_ns),
        collectives=moved(step.collectives, moved_ns),
        overlap=shift(step.overlap, moved_ns),
        exposed=shift(step.exposed, moved_ns),
        trailing=None if step.trailing is None else shift(step.trailing, moved_ns),
        buckets=buckets,
    )


def bucket_span(one: BucketStep, num_bytes: int | None, moved_ns: int) -> BucketSpan:
    """Return the bucket with times shifted by `moved_ns`. The times are since 1970 if the trace records an epoch."""

    def common(since_origin_ns: int | None) -> int | None:
        return None if since_origin_ns is None else one.origin_ns + since_origin_ns + moved_ns

    return BucketSpan(
        module=one.module,
        index=one.index,
        num_bytes=num_bytes,
        ready_ns=common(one.ready_ns),
        launched_ns=common(one.launched_ns),
        started_ns=common(one.started_ns),
        finished_ns=common(one.finished_ns),
        pass_index=one.pass_index,
    )


MAX_RANKS = 8
_IN_BAR = {"exposed_comm": "exposed comm", "data": "data, other", "other": "data, other", "copy": "data, other"}
"""part of the step → its name in the bar, if that is different"""
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
OTHER_COMM = "+"
MANY = "*"


@dataclass(frozen=True, slots=True, eq=False)
class RankTimeline:
    rank: int
    device: str
    """``"cpu"`` or ``"gpu"``"""
    names: tuple[str, ...]
    """names of kernels, ops and collectives, to which the tables refer by index"""
    on_common_clock: bool
    """True if times are on the clock that all ranks have in common; otherwise, they are on the clock of the rank's
    host: see `_set_beside`
    """
    numbers: tuple[int, ...]
    """numbers of the rank's steps"""
    steps: Sequence[StepTimeline]
    """timelines of the steps; each is created when it is accessed, because they may not all fit into memory"""


class StepsToDraw(Sequence[StepTimeline]):
    def __init__(self, draw: Callable[[int], StepTimeline], indices: Sequence[int]) -> None:
        """Create a drawing.

        `draw`: returns the timeline of the step with the given index. `indices`: indices of the steps.
        """
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
    """Timelines of all ranks. Times are in ns on the first rank's clock, since 1970 if the traces record an epoch."""

    ranks: tuple[RankTimeline, ...]
    clock_error_ns: int | None
    """largest error of a comparison between times of different ranks; ``None`` if there is one rank, or if unknown"""


@dataclass(frozen=True, slots=True)
class DrawnRank:
    """Data about a rank's steps that is available without reading the steps themselves."""

    rank: int
    device: str
    names: tuple[str, ...]
    epoch_ns: int | None
    steps: tuple[Step, ...]
    """steps of the trace"""
    measured: tuple[int, ...]
    """indices of the steps that the report measures"""
    files: tuple[str, ...] = ()
    """`file_name` of each file of the trace, in time order"""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The steps of one rank. They may be on disk, in which case only requested steps are read."""

    about: DrawnRank
    draw: Callable[[int], StepTimeline]
    """function that returns the timeline of the step with a given index, with the trace's own times and without
    buckets
    """


def file_name(path: Location) -> str:
    """Return the last part of a path, with bytes that are not valid UTF-8 escaped."""
    return path.name.encode("utf-8", "backslashreplace").decode()


def drawing_of(rank: Rank) -> Drawing | None:
    """Return the rank's drawing; ``None`` if the rank has no trace."""
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
    report: ReportView,
    buckets: Mapping[int, Sequence[BucketStep]],
    steps: Container[int] | None = None,
) -> Timeline:
    """Return the timeline of the measured steps, or only of `steps` (numbers). `buckets`: buckets by rank."""
    across = report[ACROSS]
    clock = across.clock if across is not None else None
    sizes = {(row.module, row.index): row.num_bytes for row in report[BUCKETS] or ()}
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
    """Return an additional shift of each rank's times, in ns; 0 for ranks on the common clock.

    Ranks of a job run at the same time. If a host's clock contradicts this, the rank is shifted so that the first step
    that it shares with the first rank begins at the same time on both.
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
    """Return the shift of times near `at_ns` to the common clock. Drift within one step is negligible."""
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


def typical_lanes(timeline: Timeline | None, report: ReportView) -> tuple[Section, ...]:
    """Return the lanes of the typical step, if the timeline contains it."""
    number = typical_step(report)
    return () if timeline is None or number is None else tuple(step_lanes(timeline, number))


def step_lanes(timeline: Timeline, number: int) -> Iterable[Section]:
    """Yield the lanes of the step with this number, if the timeline contains it."""
    shown = [(rank, step) for rank in timeline.ranks for step in rank.steps if step.step == number and step.parts]
    if not shown:
        return
    start = min(_begin(step) for _, step in shown)
    end = max(_end(step) for _, step in shown)
    if end == start:  # no work with a duration
        return
    lanes = tuple(lane for rank, step in shown for lane in _lanes(rank, step, start))
    letters = {span.what for lane in lanes for span in lane.spans}
    yield Lanes(
        f"Step {number} over time, ms: {_clock(timeline, [rank for rank, _ in shown])}",
        end - start,
        PARTS,
        lanes,
        notes(
            "comm: the bucket in transit" if letters & set(_LETTERS) else "",
            f"{MANY}: any bucket with index {len(_LETTERS)} or higher" if MANY in letters else "",
            f"{OTHER_COMM}: other communication" if OTHER_COMM in letters else "",
        ),
    )


def _clock(timeline: Timeline, shown: list[RankTimeline]) -> str:
    if len(shown) == 1:
        return f"rank {shown[0].rank}"
    if not all(rank.on_common_clock for rank in shown):
        return "each rank on its own clock"
    error = "" if timeline.clock_error_ns is None else f", accurate to ±{in_ms(timeline.clock_error_ns)}"
    return f"all ranks on one clock{error}"


def _begin(step: StepTimeline) -> int:
    return min(step.start_ns, int(step.collectives.start_ns.min(initial=step.start_ns)))


def _end(step: StepTimeline) -> int:
    return max(step.end_ns, int(step.collectives.end_ns.max(initial=step.end_ns)))


def _lanes(rank: RankTimeline, step: StepTimeline, origin_ns: int) -> tuple[Lane, ...]:
    work = (
        LaneSpan(start - origin_ns, end - origin_ns, _IN_BAR.get(name, name))
        for name, spans in step.named_parts().items()
        for start, end in zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
    )
    buckets = {(b.started_ns, b.finished_ns): _LETTERS[b.index : b.index + 1] or MANY for b in step.buckets}
    spans = zip(step.collectives.start_ns.tolist(), step.collectives.end_ns.tolist(), strict=True)
    comm = (LaneSpan(start - origin_ns, end - origin_ns, buckets.get((start, end), OTHER_COMM)) for start, end in spans)
    label = f"rank {rank.rank}"
    return (Lane(label, tuple(work)), Lane("comm".rjust(len(label)), tuple(comm)))
