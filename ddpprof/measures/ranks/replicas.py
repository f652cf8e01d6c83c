"""Do the ranks still train one model? Parameters that DDP keeps equal are compared at both ends of the recording.

    move       = values after the recorded steps minus those before them
    apart      = the largest distance of a rank's move from the first rank's, divided by the length of the longest move

Distances are Euclidean. Hosts that round differently diverge by rounding errors, which do not count. Modules also do
not count if the script keeps gradients local in some steps of its optimizer, as when it averages parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.model import RecordedStep, Replica, UnaveragedParameters

_APART = 0.05
_DIFFERENT = 1e-3
"""fraction of the length of the values"""
_RESOLUTIONS = 20
"""number of resolutions that is more than a rounding error"""


@dataclass(frozen=True, slots=True)
class Drift:
    """A module whose copies differ."""

    module: int
    ranks: tuple[int, ...]
    """ranks that were compared"""
    num_steps: int
    """number of steps between the two comparisons"""
    apart: float
    """largest distance, as a fraction of the longest move"""
    differed_before: bool
    """True if they differed when the recording began"""
    num_unreduced_passes: int
    """passes of the rank with most"""


def is_always_reduced(module: int, steps: Sequence[RecordedStep]) -> bool:
    """Return whether each optimizer step after a forward of the module has a synchronised backward pass before it."""
    trained = [
        step
        for step in steps
        if step.optimizers and any(one.module == module and one.has_gradients for one in step.forwards)
    ]
    return bool(trained) and all(any(one.module == module for one in step.passes) for step in trained)


def find_drifts(replicas: Mapping[int, Sequence[Replica]]) -> tuple[Drift, ...]:
    """Compare each rank's copies of always-reduced modules. Ranks that were read at other steps do not count."""
    drifts = []
    for module in sorted({one.module for of_rank in replicas.values() for one in of_rank}):
        copies = {rank: one for rank, of_rank in replicas.items() for one in of_rank if one.module == module}
        comparable = _comparable(copies)
        if len(comparable) > 1 and (drift := _drift(module, comparable)) is not None:
            drifts.append(drift)
    return tuple(drifts)


@dataclass(frozen=True, slots=True)
class TrainedApart:
    """Parameters whose gradients no DDP module averages, and whose copies differ."""

    module: str
    names: tuple[str, ...]
    is_wrapped: bool
    """True if a DDP module has them whose forward the script never calls"""
    drift: Drift


def find_trained_apart(unaveraged: Mapping[int, Sequence[UnaveragedParameters]]) -> tuple[TrainedApart, ...]:
    """Return the parameters that each rank trains for itself, if the copies differ. `unaveraged`: those of each rank.

    Copies that stay equal are averaged by other means, or are not trained yet. Parameters that no DDP module has, and
    that differ from the beginning or in their shapes, are meant to: those of experts, or an embedding in shards.
    """
    found = []
    for drift in find_drifts({rank: [one.replica for one in of] for rank, of in unaveraged.items()}):
        same = [unaveraged[rank][drift.module] for rank in drift.ranks]
        is_meant = drift.differed_before and not same[0].is_wrapped
        if len({(one.names, one.shapes) for one in same}) == 1 and not is_meant:
            found.append(TrainedApart(same[0].module, same[0].names, same[0].is_wrapped, drift))
    return tuple(found)


def _comparable(copies: Mapping[int, Replica]) -> dict[int, Replica]:
    first = copies[min(copies)]
    return {
        rank: one
        for rank, one in sorted(copies.items())
        if one.steps == first.steps and len(one.before) == len(one.after) == len(first.before) > 0
    }


def _drift(module: int, copies: Mapping[int, Replica]) -> Drift | None:
    before, after = (np.array([getattr(one, name) for one in copies.values()]) for name in ("before", "after"))
    moves = after - before
    longest, length = _lengths(moves).max(), _lengths(before).max()
    apart, rounding = _lengths(moves - moves[0]).max(), max(one.resolution for one in copies.values()) * length
    differed = bool(_lengths(before - before[0]).max() > max(_DIFFERENT * length, _RESOLUTIONS * rounding))
    if not differed and (apart <= _APART * longest or apart <= _RESOLUTIONS * rounding):
        return None
    first, last = next(iter(copies.values())).steps
    passes = max(one.num_unreduced_passes for one in copies.values())
    share = float(apart / longest) if longest > 0 else 0.0
    return Drift(module, tuple(copies), last - first, share, differed, passes)


def _lengths(values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(np.linalg.norm(values, axis=1))
