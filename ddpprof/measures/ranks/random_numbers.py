"""Do all ranks draw the same random numbers, in training or in the workers of their loaders?

Each rank noted a digest of the state of each of torch's generators at the beginning of its recorded steps. Ranks draw
the same numbers if their digests are equal in every step. A generator was used in every step if its digests all differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpprof.model import Loader, RecordedStep

_FEWEST_STEPS = 4
"""number of steps; in one or two of them, something else may draw, such as an evaluation"""

GeneratorStates = Mapping[str, Mapping[int, int]]
"""type of a generator's device → number of a step → digest of the generator's state when it began"""


@dataclass(frozen=True, slots=True)
class SameRandomNumbers:
    generators: tuple[str, ...]
    """generators from which the same numbers are drawn: of a type of device by torch's name for it, ``"numpy"`` or
    ``"random"``"""
    ranks: tuple[int, ...]
    """ranks that were compared"""
    num_steps: int
    """number of steps that were compared"""


def states_of_generators(steps: Sequence[RecordedStep]) -> GeneratorStates:
    """Return what one rank noted."""
    kinds = sorted({kind for step in steps for kind in step.random_states})
    return {
        kind: {step.number: step.random_states[kind] for step in steps if kind in step.random_states} for kind in kinds
    }


def find_same_random_numbers(states: Mapping[int, GeneratorStates]) -> SameRandomNumbers | None:
    """Return the generators from which all ranks draw the same numbers in every step; ``None`` if there is none.

    `states`: those of each rank.
    """
    ranks = tuple(sorted(states))
    kinds = set[str]().union(*states.values())
    known = {kind: [states[rank].get(kind, {}) for rank in ranks] for kind in sorted(kinds)}
    num_steps = {kind: _num_steps_alike(of_ranks) for kind, of_ranks in known.items()}
    same = tuple(kind for kind, number in num_steps.items() if number)
    if len(ranks) < 2 or not same:
        return None
    return SameRandomNumbers(same, ranks, min(num_steps[kind] for kind in same))


def find_same_worker_seeds(loaders: Mapping[int, Sequence[Loader]]) -> Loader | None:
    """Return a loader whose workers draw random numbers, from the same seeds on all ranks; ``None`` if there is none.

    `loaders`: those of each rank.
    """
    if len(loaders) < 2:
        return None
    seeds = [{seed for one in of_rank for seed in one.worker_seeds} for of_rank in loaders.values()]
    common = set.intersection(*seeds)
    of_first = next(iter(loaders.values()))
    drawing = (one for one in of_first if one.feeds_training and one.draws_in_workers)
    return next((one for one in drawing if one.worker_seeds and common.issuperset(one.worker_seeds[:1])), None)


def _num_steps_alike(states: Sequence[Mapping[int, int]]) -> int:
    """Return in how many steps the ranks' generators were alike, which is 0 unless they were in all."""
    first, *others = states
    steps = sorted(set(first).intersection(*others))
    if len(steps) < _FEWEST_STEPS or len({first[step] for step in steps}) < len(steps):
        return 0
    return len(steps) if all(other[step] == first[step] for other in others for step in steps) else 0
