"""Detect ranks that draw the same random numbers in training.

Each rank records a digest of the state of each random generator at the beginning of its recorded steps. Ranks draw the
same numbers if their digests are equal in every step. A generator was used in every step if all its digests differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.frameworks import seed_ranks
from ddpprof.engine.topic import Topic, View
from ddpprof.model import DdpModule, Rank, RecordedStep

_FEWEST_STEPS = 4
"""minimum number of steps; an evaluation, for example, may draw numbers in one or two of them"""

GeneratorStates = Mapping[str, Mapping[int, int]]
"""type of a generator's device → step number → digest of the generator's state at the start of the step"""


@dataclass(frozen=True, slots=True)
class SameRandomNumbers:
    generators: tuple[str, ...]
    """generators with the same state: torch's name of a device type, ``"numpy"`` or ``"random"``"""
    ranks: tuple[int, ...]
    """ranks that were compared"""
    num_steps: int
    """number of steps that were compared"""


def states_of_generators(steps: Sequence[RecordedStep]) -> GeneratorStates:
    """Return the states recorded by one rank."""
    kinds = sorted({kind for step in steps for kind in step.random_states})
    return {
        kind: {step.number: step.random_states[kind] for step in steps if kind in step.random_states} for kind in kinds
    }


def find_same_random_numbers(states: Mapping[int, GeneratorStates]) -> SameRandomNumbers | None:
    """Return the generators from which all ranks draw the same numbers in every step; ``None`` if there is none.

    `states`: rank → its generators' states.
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
    """Return the number of common steps if the states are equal on all ranks in each of them; otherwise 0."""
    first, *others = states
    steps = sorted(set(first).intersection(*others))
    if len(steps) < _FEWEST_STEPS or len({first[step] for step in steps}) < len(steps):
        return 0
    return len(steps) if all(other[step] == first[step] for other in others for step in steps) else 0


def same_random_numbers(same: SameRandomNumbers, view: View) -> Iterator[Finding]:
    """Report ranks that draw the same random numbers because they use the same seed."""
    if len(same.ranks) != view.world_size or not view.is_one_group:
        return  # ranks that do not average gradients with each other may need the same numbers
    ranks = "both ranks" if len(same.ranks) == 2 else f"all {len(same.ranks)} ranks"
    generators = [_GENERATORS.get(one, "torch's accelerator generator") for one in same.generators]
    were, used = ("were", "were used") if len(generators) > 1 else ("was", "was used")
    yield Finding(
        "same-random-numbers",
        f"{ranks.capitalize()} draw the same random numbers",
        f"{' and '.join(generators)} {were} in the same state on {ranks} at the start of each of {same.num_steps} "
        f"recorded steps, and {used} in every step",
        f"{seed_ranks(view.framework, same.generators)} Until this is fixed, everything random in the training, such "
        "as dropout masks, noise or augmentation, is identical on every rank. For random numbers that must be the "
        "same on all ranks, such as those that determine the order of samples, use a separate torch.Generator with "
        "the same seed on all ranks.",
        None,
        is_correctness=True,
        numbers=only_known(num_ranks=len(same.ranks), num_steps=same.num_steps),
    )


_GENERATORS = {"cpu": "torch's CPU generator", "numpy": "NumPy's generator", "random": "Python's random module"}


@dataclass(frozen=True, slots=True)
class RankGenerators:
    """States of the random generators of one rank."""

    rank: int
    states: GeneratorStates


def _of_rank(rank: Rank, _steps: Sequence[int], _modules: Sequence[DdpModule]) -> RankGenerators | None:
    return None if rank.record is None else RankGenerators(rank.rank, states_of_generators(rank.record.steps))


RANDOM_NUMBERS: Topic[RankGenerators, SameRandomNumbers] = Topic(
    "random_numbers",
    rules=(same_random_numbers,),
    of_rank=_of_rank,
    rank_type=RankGenerators,
    of_ranks=lambda ranks: find_same_random_numbers({one.rank: one.states for one in ranks}),
)
