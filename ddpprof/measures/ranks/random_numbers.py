"""Do all ranks draw the same random numbers?

Each rank noted a digest of the state of each of torch's generators at the beginning of its recorded steps. Ranks draw
the same numbers if their digests are equal in every step. A generator was used in every step if its digests all differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpprof.model import RecordedStep

_FEWEST_STEPS = 4
"""number of steps; in one or two of them, something else may draw, such as an evaluation"""

GeneratorStates = Mapping[str, Mapping[int, int]]
"""type of a generator's device → number of a step → digest of the generator's state when it began"""


@dataclass(frozen=True, slots=True)
class SameRandomNumbers:
    generators: tuple[str, ...]
    """devices from whose generators the same numbers are drawn, by torch's names for their types"""
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


def _num_steps_alike(states: Sequence[Mapping[int, int]]) -> int:
    """Return in how many steps the ranks' generators were alike, which is 0 unless they were in all."""
    first, *others = states
    steps = sorted(set(first).intersection(*others))
    if len(steps) < _FEWEST_STEPS or len({first[step] for step in steps}) < len(steps):
        return 0
    return len(steps) if all(other[step] == first[step] for other in others for step in steps) else 0
