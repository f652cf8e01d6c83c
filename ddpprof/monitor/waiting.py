"""Who waits for whom?

Ranks wait for one that has begun fewer backward passes than they have, or for the one whose own time is the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high

from ddpprof.monitor.rank_now import RankNow, Standing
from ddpprof.words import clauses

_STUCK_NS = 10**9
"""least time for which a rank stands where it stands before it is said to wait for a rank that is behind"""
_WORTH = 0.1
"""least share of a step by which a rank's own time must be larger than that of others"""
_MOST_NAMED = 3


def waiting_lines(ranks: Sequence[RankNow]) -> tuple[str, ...]:
    """Return a sentence for each reason for which ranks wait."""
    return (*_behind(ranks), *([] if any(one.standing.is_trouble for one in ranks) else _slowest(ranks)))


def _behind(ranks: Sequence[RankNow]) -> list[str]:
    """Name ranks that have begun fewer backward passes than others that stand and wait."""
    ahead = max(one.num_passes for one in ranks)
    late = [one for one in ranks if one.num_passes < ahead]
    waiting = [one for one in ranks if one.num_passes == ahead and _stands(one)]
    if not late or not waiting:
        return []
    since_ns = min(one.activity_age_ns for one in waiting)
    named = clauses([_where(one, ahead) for one in late], _MOST_NAMED)
    who = "1 rank has" if len(waiting) == 1 else f"{len(waiting)} ranks have"
    return [f"{who} waited {since_ns / 1e9:.0f} s for {named}"]


def _stands(one: RankNow) -> bool:
    return one.activity == "backward" and one.activity_age_ns > max(_STUCK_NS, 2 * (one.step_ns or 0))


def _where(one: RankNow, ahead: int) -> str:
    passes = ahead - one.num_passes
    behind = "a backward pass" if passes == 1 else f"{passes} backward passes"
    at = f"in step {one.step}, {one.activity} for {one.activity_age_ns / 1e9:.0f} s"
    state = "" if one.standing is Standing.TRAINING else f", {one.standing}"
    return f"rank {one.rank}, which is {behind} behind ({at}{state})"


def _slowest(ranks: Sequence[RankNow]) -> list[str]:
    """Name the rank whose own time is the largest, if the others wait for it."""
    known = [(one.own_ns, one) for one in ranks if one.own_ns is not None and one.wait_ns is not None]
    if len(known) < 2:
        return []
    own_ns, slowest = max(known, key=lambda pair: pair[0])
    usual_ns = median_high(own for own, one in known if one is not slowest)
    waiting_ns = median_high(one.wait_ns or 0 for _, one in known if one is not slowest)
    beyond_ns = own_ns - usual_ns
    they_wait_longer_ns = waiting_ns - (slowest.wait_ns or 0)
    if beyond_ns < _WORTH * (slowest.step_ns or 0) or they_wait_longer_ns < beyond_ns / 2:
        return []
    take, wait = ("the other rank takes", "waits") if len(known) == 2 else ("the others take", "wait")
    times = f"{own_ns / 1e6:.1f} ms of its own per step; {take} {usual_ns / 1e6:.1f} ms"
    return [f"rank {slowest.rank} is the slowest: {times}, and {wait} {waiting_ns / 1e6:.1f} ms in each step"]
