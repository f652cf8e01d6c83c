"""Over which profiled steps do the tables average?

    usual = at most 1.5 × as long as the median step, where a step's length is the mean over the ranks

Means over the same steps add up, and agree between tables. One step on a busy machine would distort them.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, median

_MOST = 1.5


def usual_steps(lengths_ns: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the numbers of the usual steps, ascending. `lengths_ns`: number and length, once per rank."""
    of_step: dict[int, list[int]] = {}
    for number, length_ns in lengths_ns:
        of_step.setdefault(number, []).append(length_ns)
    if not of_step:
        return ()
    means = {number: fmean(lengths) for number, lengths in of_step.items()}
    most = _MOST * median(means.values())
    return tuple(sorted(number for number, mean in means.items() if mean <= most))
