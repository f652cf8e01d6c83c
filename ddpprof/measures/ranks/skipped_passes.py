"""Which rank skipped a backward pass that the others took part in?

A rank may catch an error of one batch, or leave out a loss that is NaN. DDP counts only backward passes, so that the
rank averages the gradients of its next batch with those of the others' last one, and so on until the end. Only then is
it known: the rank has finished with fewer backward passes than the others. A forward alone proves nothing, since a
script may compute a loss to log it, or repeat a forward that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Passes(NamedTuple):
    """The passes of a rank through its DDP modules."""

    num_backward: int
    """number of synchronising backward passes that it has begun"""
    has_finished: bool
    """whether its training ended without an error"""
    num_unpaired: int = 0
    """number of forwards that were not followed by a backward pass, beyond those that every step has"""
    first_unpaired_step: int | None = None
    """number of the first step with one"""


class SkippedPass(NamedTuple):
    rank: int
    step: int
    """number of the first step without its backward pass"""
    num_passes: int


def find_skipped_pass(ranks: Mapping[int, Passes]) -> SkippedPass | None:
    """Return the rank that skipped most; ``None`` if no rank has finished with fewer backward passes than another."""
    found = [
        SkippedPass(rank, one.first_unpaired_step, one.num_unpaired)
        for rank, one in ranks.items()
        if one.has_finished
        and one.first_unpaired_step is not None
        and any(
            other.num_backward > one.num_backward and other.num_unpaired < one.num_unpaired for other in ranks.values()
        )
    ]
    return max(found, key=lambda one: one.num_passes, default=None)
