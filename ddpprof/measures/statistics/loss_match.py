"""Does a training under another setting have the losses of the training as it is, step by step?

    difference  |loss - loss as it is| / |loss as it is|, the largest over steps and ranks
    own         the same between starts of the training as it is

Two starts that are the same to the last bit show that nothing is left to chance. Then a setting that keeps the order
of additions has the same bits, too: all settings of two ranks, since a + b = b + a. Of more ranks other buckets may be
added in another order, which rounds each gradient otherwise: by single precision's 2⁻²⁴, and more from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import inf, isfinite

Losses = Mapping[int, Sequence[Sequence[float]]]
"""by rank, per step, of each backward pass"""

_ROUNDING = 2.0**-20
"""of a loss after one step: sixteen times what single precision rounds, since sums of many gradients do, too"""
_OWN_FACTOR = 3
"""times what starts of the same differ by, of which few are known"""
_CHANCE = 1e-4
"""Starts that differ by more than this, which is more than rounding makes in a few steps, tell nothing of a setting: no
seed is set, or half precision adds in any order."""


class Match(StrEnum):
    EXACT = "exact"
    """to the last bit"""
    ROUNDING = "rounding"
    CHANGED = "changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LossMatch:
    match: Match
    num_steps: int
    """that were compared"""
    difference: float | None
    own: float | None
    """``None`` with fewer than two starts"""
    tolerance: float | None
    """at the last of the steps"""


_NOTHING = LossMatch(Match.UNKNOWN, 0, None, None, None)


def match_losses(as_it_is: Sequence[Losses], setting: Sequence[Losses], order_is_kept: bool) -> LossMatch:
    """Of starts of each. `order_is_kept`: the setting adds the same numbers in the same order."""
    own = [_differences(a, b) for a, b in combinations(as_it_is, 2)]
    theirs = [_differences(as_it_is[0], one) for one in setting] if as_it_is else []
    found = [one for one in theirs if one]
    if not found:
        return _NOTHING
    num_steps, most = min(map(len, found)), max(map(max, found))
    known = [one for one in own if one]
    if not known:
        return LossMatch(Match.EXACT if most == 0 else Match.UNKNOWN, num_steps, most, None, None)
    chance = max(map(max, known))
    if chance > _CHANCE:
        return LossMatch(Match.UNKNOWN, num_steps, most, chance, None)
    rounding = 0.0 if order_is_kept and chance == 0 else _ROUNDING
    tolerances = [_OWN_FACTOR * chance + rounding * (step + 1) for step in range(max(map(len, found)))]
    agrees = all(difference <= tolerances[step] for one in found for step, difference in enumerate(one))
    match = Match.EXACT if most == 0 else Match.ROUNDING if agrees else Match.CHANGED
    return LossMatch(match, num_steps, most, chance, tolerances[num_steps - 1])


def _differences(a: Losses, b: Losses) -> list[float]:
    """The largest of each step, over the ranks that both have; of the steps that both have losses of."""
    of_ranks = [zip(a[rank], b[rank], strict=False) for rank in sorted(a.keys() & b.keys())]
    steps = zip(*of_ranks, strict=False)
    return [most for pairs in steps if (most := _of_step(pairs)) is not None]


def _of_step(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """``None`` where no rank has a loss; without bound where one training has more of them."""
    if not any(a or b for a, b in pairs):
        return None
    if any(len(a) != len(b) for a, b in pairs):
        return inf
    return max(_relative(x, y) for a, b in pairs for x, y in zip(a, b, strict=True))


def _relative(a: float, b: float) -> float:
    if a == b or not (isfinite(a) or isfinite(b)):
        return 0.0
    return abs(a - b) / abs(a) if a and isfinite(a) and isfinite(b) else inf
