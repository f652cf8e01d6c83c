"""Predicted effects, by replay of the recorded steps, of the changes that rules advise.

`predict` makes them and `report` passes them on; a rule that finds its change here uses exactly that change's gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ddpprof.engine.numbers import Number

DEFAULT_CAP = "bucket_cap_mb=None"
ACCUMULATED = 4
"""number of backward passes per reduction when more accumulation is considered"""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted gain of one change alone, ns per step; negative if it costs time."""

    gain_ns: Annotated[int, Number("predicted gain per step", column="ns")]
    low_ns: Annotated[int, Number("lower end of its 95 % interval")]
    high_ns: Annotated[int, Number("upper end of its 95 % interval")]


def within(predicted: Predicted, cause_ns: int | None) -> Predicted:
    """Return the prediction, but no more than the time that the change can remove, if that was measured.

    The replay may describe other steps than those in which the time was measured.
    """
    if cause_ns is None:
        return predicted
    return Predicted(*(min(ns, cause_ns) for ns in (predicted.gain_ns, predicted.low_ns, predicted.high_ns)))


@dataclass(frozen=True, slots=True)
class NewBuckets:
    """The buckets that DDP makes with a given argument."""

    argument: str
    """argument of DDP's constructor; empty for the recorded buckets, if no better ones were found"""
    bucket_bytes: tuple[int, ...]
    """sizes in the order of launch"""
    predicted: Predicted | None = None
    equal_mb: tuple[float, float] | None = None
    """smallest and largest cap of all buckets that are as good, if there are several"""

    @property
    def is_default(self) -> bool:
        return self.argument == DEFAULT_CAP


def since_torch(argument: str) -> str:
    """Return a note for an argument that older versions of torch lack."""
    return ", from torch 2.13 on" if argument.startswith("bucket_cap_mb_list") else ""


def equal_caps(equal_mb: tuple[float, float] | None) -> str:
    """Say which caps are as good, for after an argument."""
    return "" if equal_mb is None else f" ({equal_mb[0]:g} to {equal_mb[1]:g} MB are equal)"


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted effects of single changes; ``None`` if the run cannot tell, or has the change already."""

    best_buckets: NewBuckets | None = None
    """best buckets found"""
    compression: Predicted | None = None
    """halved gradients, in fp16 or bf16, whichever the backend supports"""
    bucket_views: Predicted | None = None
    without_unused_search: Predicted | None = None
    """no search for unused parameters, and buckets in the order of gradients"""
    no_sync: Predicted | None = None
    """reduction only in the last of a step's several backward passes"""
    double_batch: Predicted | None = None
    """batches twice as large; communication saved per batch of the present size"""
    accumulation: Predicted | None = None
    """reduction in every `ACCUMULATED`-th backward pass; communication saved per backward pass"""
    double_link: Predicted | None = None
    """a network with twice the bandwidth"""
    without_straggler: Predicted | None = None
    """the slowest rank as fast as the next one"""
