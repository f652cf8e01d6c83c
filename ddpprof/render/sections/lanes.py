"""One step in the order of events: what each rank does, and which bucket is in transit."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import PARTS, Lane, Lanes, LaneSpan, Section, ms, notes
from ddpprof.report.timeline import RankTimeline, Timeline
from ddpprof.topics.steps.timeline import StepTimeline

MAX_RANKS = 8
_IN_BAR = {"exposed_comm": "exposed comm", "data": "data, other", "other": "data, other"}
"""parts of the step that have a different name in the bar"""
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
OTHER_COMM = "+"
MANY = "*"


def step_lanes(timeline: Timeline, number: int) -> Iterable[Section]:
    """Draw the step with that number, if the timeline has it."""
    shown = [(rank, step) for rank in timeline.ranks for step in rank.steps if step.step == number and step.parts]
    if not shown:
        return
    start = min(_begin(step) for _, step in shown)
    end = max(_end(step) for _, step in shown)
    if end == start:  # nothing in it has a duration
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
    error = "" if timeline.clock_error_ns is None else f", accurate to ±{ms(timeline.clock_error_ns)} ms"
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
