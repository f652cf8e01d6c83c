"""Over which profiled steps do the tables average?

    usual = at most 1.5 × as long as the median step, where a step's length is the mean over the ranks

A step with an evaluation in it is not usual either if it is longer than all steps without one. Means over the same
steps add up, and agree between tables. One step on a busy machine would distort them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import fmean, median

_MOST = 1.5


def usual_steps(lengths_ns: Iterable[tuple[int, int]], evaluated: Collection[int] = ()) -> tuple[int, ...]:
    """Return the numbers of the usual steps, ascending.

    `lengths_ns`: number and length, once per rank. `evaluated`: numbers of steps with an evaluation in them.
    """
    of_step: dict[int, list[int]] = {}
    for number, length_ns in lengths_ns:
        of_step.setdefault(number, []).append(length_ns)
    means = {number: fmean(lengths) for number, lengths in of_step.items()}
    trained = [mean for number, mean in means.items() if number not in evaluated]
    if trained:
        means = {number: mean for number, mean in means.items() if number not in evaluated or mean <= max(trained)}
    most = _MOST * median(means.values()) if means else 0
    return tuple(sorted(number for number, mean in means.items() if mean <= most))
