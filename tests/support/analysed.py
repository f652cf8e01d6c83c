"""Ranks as `pipeline.analysis` hands them on, without a file."""

from __future__ import annotations

from ddpprof.model import Rank
from ddpprof.report.topics import RankSummary, summarize_rank
from ddpprof.topics.steps.timeline import DrawnRank, drawing_of


def as_analysed(rank: Rank) -> tuple[RankSummary, DrawnRank]:
    """Return the summary of a rank with a trace, and what is known of its drawing."""
    drawing = drawing_of(rank)
    assert drawing is not None
    return summarize_rank(rank, ()).ranks[0], drawing.about
