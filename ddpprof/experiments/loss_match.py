"""Compare the losses of training with another setting to the losses of the unchanged training, step by step.

    difference  |loss - unchanged loss| / |unchanged loss|, maximum over steps and ranks
    own         the same between several starts of the unchanged training

If two starts are bit-identical, training is deterministic, and a setting that keeps the order of additions must also
give bit-identical losses. With two ranks, all settings keep the order, because a + b = b + a. With more ranks, other
buckets may be added in another order, so that gradients are rounded differently (by 2⁻²⁴ in single precision). The
difference grows from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import inf, isfinite

Losses = Mapping[int, Sequence[Sequence[float]]]
"""rank → step → loss of each backward pass"""

_ROUNDING = 2.0**-20
"""tolerance per step: 16 times the rounding error of single precision, because many gradients are summed"""
_OWN_FACTOR = 3
"""factor applied to the difference between starts of the same job, because there are only few starts"""
_CHANCE = 1e-4
"""maximum difference between starts for a comparison; a larger difference is not due to rounding in a few steps, so no
seed is set, or half-precision values are added in varying order
"""


class Match(StrEnum):
    """How the losses of two trainings compare."""

    EXACT = "exact"
    """bit-identical"""
    ROUNDING = "rounding"
    CHANGED = "changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LossMatch:
    """Result of a comparison of losses."""

    match: Match
    num_steps: int
    """number of steps compared"""
    difference: float | None
    own: float | None
    """``None`` with fewer than two starts"""
    tolerance: float | None
    """tolerance at the last compared step"""


_OF_BUCKETS = ("bucket_cap_mb", "bucket_cap_mb_list", "find_unused_parameters", "static_graph")
"""arguments of DDP that change the assignment of gradients to buckets"""
_ORDER_OF_TWO = 2
"""maximum number of ranks for which a sum does not depend on the order"""


def keeps_order(arguments: Iterable[str], world_size: int | None) -> bool:
    """Return True if DDP still adds the same numbers in the same order after a change of these arguments."""
    return (world_size or 1) <= _ORDER_OF_TWO or not any(name in _OF_BUCKETS for name in arguments)


_NOTHING = LossMatch(Match.UNKNOWN, 0, None, None, None)


def match_losses(as_it_is: Sequence[Losses], setting: Sequence[Losses], order_is_kept: bool) -> LossMatch:
    """Compare the starts of the unchanged job with the starts under the setting. `order_is_kept`: see `keeps_order`."""
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
    """Return the largest difference over ranks in each step for which both have losses."""
    of_ranks = [zip(a[rank], b[rank], strict=False) for rank in sorted(a.keys() & b.keys())]
    steps = zip(*of_ranks, strict=False)
    return [most for pairs in steps if (most := _of_step(pairs)) is not None]


def _of_step(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """Return a step's difference; ``None`` if no rank has a loss, ``inf`` if the numbers of losses differ."""
    if not any(a or b for a, b in pairs):
        return None
    if any(len(a) != len(b) for a, b in pairs):
        return inf
    return max(_relative(x, y) for a, b in pairs for x, y in zip(a, b, strict=True))


def _relative(a: float, b: float) -> float:
    if a == b or not (isfinite(a) or isfinite(b)):
        return 0.0
    return abs(a - b) / abs(a) if a and isfinite(a) and isfinite(b) else inf
