"""Do several ranks train on the same samples?

Each rank digested some samples of the batches from its DataLoader in the recorded steps. There are two findings:
    the same batches   every rank's batch is the same in each pass and position that all of them recorded
    the same samples   within one pass over the loader, samples of one rank are among those of another
If samples differ, nothing is known: random augmentation turns one into two. Nothing is said if ranks need not have
different samples: for batches that do not change, and for samples that one rank gets twice in a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpprof.model import Batch, Loader

_FEWEST_BATCHES = 3
_FEWEST_SAMPLES = 8
"""number of distinct samples"""
_FEWEST_SHARED = 16
_SHARED = 0.25
"""least share of a rank's samples that must also be another rank's, to say that the data is not divided"""


@dataclass(frozen=True, slots=True)
class SameSamples:
    loader: Loader
    """loader of the first rank"""
    ranks: tuple[int, ...]
    num_batches: int
    """number of batches that are the same on all ranks; 0 if only samples are shared"""
    num_samples: int
    """number that the rank with most of them shares with others, in one pass"""
    num_compared: int
    """number of samples of that rank in that pass"""

    @property
    def same_batches(self) -> bool:
        return self.num_batches > 0


def find_same_samples(loaders: Mapping[int, Sequence[Loader]]) -> SameSamples | None:
    """Return what the ranks are known to share; ``None`` if nothing is known. `loaders`: those of each rank.

    Every loader that feeds the training must be shared: one that is divided among the ranks is enough.
    """
    feeding = {rank: [one for one in of_rank if one.feeds_training] for rank, of_rank in loaders.items()}
    counts = {len(of_rank) for of_rank in feeding.values()}
    if len(feeding) < 2 or len(counts) > 1 or counts == {0}:
        return None
    found = [_shared(dict(zip(feeding, position, strict=True))) for position in zip(*feeding.values(), strict=True)]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: one.num_batches) if len(known) == len(found) else None


def _shared(loaders: Mapping[int, Loader]) -> SameSamples | None:
    if any(2 * (one.num_passed_on or 0) < len(one.batches) for one in loaders.values()):
        return None  # the model may get different parts of the batches on each rank
    if len({one.num_iterations for one in loaders.values()}) > 1:
        return None  # one rank's pass may be of another epoch than another rank's
    first, ranks = next(iter(loaders.values())), tuple(sorted(loaders))
    by_place = [{(batch.iteration, batch.place): batch.samples for batch in one.batches} for one in loaders.values()]
    places = set.intersection(*map(set, by_place))
    if places and all(len({batches[place] for batches in by_place}) == 1 for place in places):
        contents = {by_place[0][place] for place in places}
        samples = {sample for content in contents for sample in content}
        if len(contents) < _FEWEST_BATCHES or len(samples) < _FEWEST_SAMPLES:
            return None
        return SameSamples(first, ranks, len(places), len(samples), len(samples))
    return _shared_in_a_pass(first, ranks, {rank: one.batches for rank, one in loaders.items()})


def _shared_in_a_pass(
    first: Loader, ranks: tuple[int, ...], batches: Mapping[int, Sequence[Batch]]
) -> SameSamples | None:
    most: SameSamples | None = None
    for iteration in sorted({batch.iteration for of_rank in batches.values() for batch in of_rank}):
        samples = {
            rank: [sample for batch in of_rank if batch.iteration == iteration for sample in batch.samples]
            for rank, of_rank in batches.items()
        }
        if any(len(set(of_rank)) < len(of_rank) for of_rank in samples.values()):
            continue  # if one rank gets samples twice, two ranks may, too
        for rank, of_rank in samples.items():
            others = {sample for other in samples if other != rank for sample in samples[other]}
            shared = len(others.intersection(of_rank))
            enough = shared >= max(_FEWEST_SHARED, _SHARED * len(of_rank))
            if enough and (most is None or shared > most.num_samples):
                most = SameSamples(first, ranks, 0, shared, len(of_rank))
    return most
