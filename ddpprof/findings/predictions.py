"""What the replay of the recorded steps says of the changes that rules advise.

`predict` makes them, `report` hands them over: a rule that finds its change here takes the gain of exactly that change.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_CAP = "bucket_cap_mb=None"


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

    @property
    def call(self) -> str:
        if self.is_default:
            return "DistributedDataParallel(model), without bucket_cap_mb,"
        since = since_torch(self.argument)
        return f"DistributedDataParallel(model, {self.argument}){f'{since},' if since else ''}"


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
    without_straggler: Predicted | None = None
    """the slowest rank as fast as the next one"""
