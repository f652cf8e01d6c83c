"""What the replay of the recorded steps says of the changes that rules advise.

`predict` makes them, `report` hands them over: a rule that finds its change here takes the gain of exactly that change.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_CAP = "bucket_cap_mb=None"
ACCUMULATED = 4
"""backward passes for each that is reduced, where more accumulation is considered"""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What one change alone gives back, ns per step; negative where it costs time."""

    gain_ns: int
    low_ns: int
    high_ns: int
    """ends of a 95 % interval"""


@dataclass(frozen=True, slots=True)
class NewBuckets:
    """What DDP makes when it is told so."""

    argument: str
    """of its constructor; empty: the recorded ones, as none were found that are better"""
    bucket_bytes: tuple[int, ...]
    """in the order of launch"""
    predicted: Predicted | None = None

    @property
    def is_default(self) -> bool:
        return self.argument == DEFAULT_CAP


def since_torch(argument: str) -> str:
    """What is to be said of an argument that older ones do not have."""
    return ", from torch 2.13 on" if argument.startswith("bucket_cap_mb_list") else ""


@dataclass(frozen=True, slots=True)
class Predictions:
    """``None``: the run cannot tell, or has it already."""

    best_buckets: NewBuckets | None = None
    """the best that were found"""
    compression: Predicted | None = None
    """by half: fp16 or bf16, whichever the backend takes"""
    bucket_views: Predicted | None = None
    static_graph: Predicted | None = None
    """no search for unused parameters, and buckets in the order of gradients"""
    no_sync: Predicted | None = None
    """of a step's several reduced backward passes only the last reduces"""
    double_batch: Predicted | None = None
    """batches of twice the size: per batch of the size as it is"""
    accumulation: Predicted | None = None
    """gradients reduced in every `ACCUMULATED`-th backward pass: per backward pass"""
    double_link: Predicted | None = None
    """a network of twice the bandwidth"""
    without_straggler: Predicted | None = None
    """the slowest rank as fast as the next one"""
