"""Gradients that the script reduces without torch's DDP."""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.events import Rank
from ddpprof.measures.own_reduction import OwnReduction, least_exposed, measure_own_reduction
from ddpprof.report.ranks import whole_steps


def own_reduction(ranks: Sequence[Rank]) -> OwnReduction | None:
    """Per step; ``None`` where ddpprof recorded, since it only records DDP, and where gradients are not reduced so."""
    traces = [rank.trace for rank in ranks if rank.trace is not None and rank.record is None]
    return least_exposed([measure_own_reduction(trace, whole_steps(trace, ())) for trace in traces])
