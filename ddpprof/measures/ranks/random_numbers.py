"""Do all ranks draw the same random numbers?

Each rank noted a digest of the state of torch's generators at the beginning of its recorded steps. The ranks draw the
same numbers if these are equal, and draw in every step if no two of a rank are equal. A `DataLoader`, which draws one
number per pass for its workers, is no reason to say so, unless a step takes a whole pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_FEWEST_STEPS = 4


@dataclass(frozen=True, slots=True)
class SameRandomNumbers:
    ranks: tuple[int, ...]
    """ranks that were compared"""
    num_steps: int
    """number of steps that were compared"""


def find_same_random_numbers(states: Mapping[int, Mapping[int, int]]) -> SameRandomNumbers | None:
    """Return what is known of all ranks; ``None`` if their numbers differ, or not every step draws some.

    `states`: of each rank, number of the step → digest.
    """
    if len(states) < 2:
        return None
    first, *others = states.values()
    steps = sorted(set(first).intersection(*others))
    if len(steps) < _FEWEST_STEPS or len({first[step] for step in steps}) < len(steps):
        return None
    if any(other[step] != first[step] for other in others for step in steps):
        return None
    return SameRandomNumbers(tuple(sorted(states)), len(steps))
