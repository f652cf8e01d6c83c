"""Timelines of runs that are entirely in memory."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ddpprof.model import Rank, Run
from ddpprof.report import Report
from ddpprof.topics.buckets.steps import BucketStep, bucket_steps
from ddpprof.topics.buckets.traced import find_passes, trace_buckets
from ddpprof.topics.steps.timeline import Timeline, draw_timeline, drawing_of


def build_timeline(
    run: Run, report: Report, steps: Container[int] | None = None, ranks: Container[int] | None = None
) -> Timeline:
    """Draw the profiled steps that the report measures, or only those steps and ranks with these numbers."""
    chosen = [rank for rank in run.ranks if ranks is None or rank.rank in ranks]
    drawings = [drawing for rank in chosen if (drawing := drawing_of(rank)) is not None]
    return draw_timeline(drawings, report, _buckets(run, chosen), steps)


def _buckets(run: Run, chosen: Sequence[Rank]) -> Mapping[int, Sequence[BucketStep]]:
    """Return buckets from the recorder's facts or, without them, from the traces of all ranks."""
    if run.modules:
        return {rank.rank: bucket_steps(rank, run.modules) for rank in chosen}
    passes = {rank.rank: find_passes(rank.trace) for rank in run.ranks if rank.trace is not None}
    return trace_buckets(passes, one_clock=False).ranks
