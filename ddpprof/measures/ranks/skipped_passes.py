"""Which rank skipped a backward pass that the others took part in?

A rank may catch an error of one batch, or leave out a loss that is NaN. DDP counts only backward passes, so that the
rank averages the gradients of its next batch with those of the others' last one, and so on until the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Unpaired(NamedTuple):
    """Forwards of a rank that were not followed by a backward pass, beyond those that every step has."""

    num_forwards: int
    first_step: int | None
    """number of the first step with one"""
    num_steps: int
    """number of steps that the rank has ended"""


class SkippedPass(NamedTuple):
    rank: int
    step: int
    """number of the first step without its backward pass"""
    num_passes: int


def find_skipped_pass(ranks: Mapping[int, Unpaired]) -> SkippedPass | None:
    """Return the rank that skipped most; ``None`` if all ranks skip alike, as far as they have come."""
    found = [
        SkippedPass(rank, one.first_step, one.num_forwards)
        for rank, one in ranks.items()
        if one.first_step is not None
        and any(
            other.num_steps > one.first_step != other.first_step and other.num_forwards < one.num_forwards
            for other in ranks.values()
        )
    ]
    return max(found, key=lambda one: one.num_passes, default=None)
