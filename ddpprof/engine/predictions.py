"""Predicted effects of the changes that rules recommend, from a replay of the recorded steps.

`predict` makes them and `report` passes them on. A rule that finds its change here uses the gain of exactly that
change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ddpprof.engine.numbers import Number

DEFAULT_CAP = "bucket_cap_mb=None"
ACCUMULATED = 4
"""number of backward passes per reduction in the prediction of more accumulation"""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted gain of one change alone, ns per step; negative if it costs time."""

    gain_ns: Annotated[int, Number("predicted gain per step", column="ns")]
    low_ns: Annotated[int, Number("lower end of its 95 % interval")]
    high_ns: Annotated[int, Number("upper end of its 95 % interval")]


def within(predicted: Predicted, cause_ns: int | None) -> Predicted:
    """Return the prediction, limited to the time that the change can remove if that was measured.

    The replay may cover other steps than those in which the time was measured.
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
    """bucket sizes in launch order"""
    predicted: Predicted | None = None
    equal_mb: tuple[float, float] | None = None
    """smallest and largest single cap that are equally good, if there are several"""

    @property
    def is_default(self) -> bool:
        return self.argument == DEFAULT_CAP


def since_torch(argument: str) -> str:
    """Return a note for an argument that older torch versions do not have."""
    return ", from torch 2.13 on" if argument.startswith("bucket_cap_mb_list") else ""


def equal_caps(equal_mb: tuple[float, float] | None) -> str:
    """Return, in words to follow an argument, which caps are equally good."""
    return "" if equal_mb is None else f" ({equal_mb[0]:g} to {equal_mb[1]:g} MB are equal)"


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted effects of single changes; ``None`` if the run cannot tell, or already has the change."""

    best_buckets: NewBuckets | None = None
    """best buckets found"""
    aligned_buckets: Predicted | None = None
    """buckets of a compiled model that end where its graphs end: the first one at 1 MiB, others at the present cap"""
    compression: Predicted | None = None
    """half-precision gradients, in fp16 or bf16, whichever the backend supports"""
    bucket_views: Predicted | None = None
    without_unused_search: Predicted | None = None
    """no search for unused parameters, and buckets in gradient order"""
    no_sync: Predicted | None = None
    """reduction only in the last of a step's several backward passes"""
    double_batch: Predicted | None = None
    """doubling the batch size; communication time saved per batch of the present size"""
    accumulation: Predicted | None = None
    """reduction in every `ACCUMULATED`-th backward pass; communication time saved per backward pass"""
    double_link: Predicted | None = None
    """a network with twice the bandwidth"""
    without_straggler: Predicted | None = None
    """the slowest rank made as fast as the next one"""
