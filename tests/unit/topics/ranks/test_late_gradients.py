"""The gradient with which a slow rank falls behind, by name."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import ddp_module, forward, recorded

from ddpprof.model import RecordedStep
from ddpprof.topics.ranks.late_gradients import LateGradient, find_late_gradients

THREE = ddp_module((4, 4, 4), ((2, 1, 0),))
"""Gradients become ready from p2 to p0."""


def step(number: int, ready: Sequence[int | None], origin: int = 0, module: int = 0, **changes: Any) -> RecordedStep:
    times = {module: [None if time is None else origin + time for time in ready]}
    return recorded(number, ready=times, forwards=(forward(inner_end=origin, module=module),), **changes)


def late(
    *ready: Sequence[int | None], usual: Sequence[int | None] = (30, 20, 10), **changes: Any
) -> tuple[LateGradient, ...] | None:
    """Of rank 1 with those delays in steps 0, 1, …, among four ranks."""
    ranks = {rank: [step(number, usual, rank * 1000) for number in range(len(ready))] for rank in range(4)}
    ranks[1] = [step(number, delays, 7_000_000, **changes) for number, delays in enumerate(ready)]
    return find_late_gradients([THREE], ranks, 1)


def test_between_two_gradients() -> None:
    assert late((130, 120, 10)) == (LateGradient(0, "p1", "p2", 100, 100, 1),)


def test_before_the_first_gradient() -> None:
    assert late((130, 120, 110)) == (LateGradient(0, "p2", None, 100, 100, 1),)


def test_in_several_places_the_largest_first() -> None:
    assert late((230, 70, 10)) == (LateGradient(0, "p0", "p1", 150, 200, 1), LateGradient(0, "p1", "p2", 50, 50, 1))


def test_what_it_catches_up_is_no_jump() -> None:
    found = late((60, 120, 10))
    assert found is not None
    assert [one.parameter for one in found] == ["p1"]


def test_small_jumps_beside_a_large_one_are_noise() -> None:
    found = late((140, 120, 11))
    assert found is not None
    assert [(one.parameter, one.jump_ns) for one in found] == [("p1", 99)]


def test_medians_over_steps() -> None:
    found = late((130, 120, 10), (9030, 9020, 10), (131, 121, 10), (30, 20, 10), (130, 120, 10))
    assert found == (LateGradient(0, "p1", "p2", 100, 100, 5),)


def test_a_rank_in_time() -> None:
    assert late((30, 20, 10)) == ()
    assert late((25, 18, 9)) == ()


def test_parameters_without_gradient_are_passed_over() -> None:
    assert late((130, None, 10), (130, None, 10)) == (LateGradient(0, "p0", "p2", 100, 100, 2),)
    found = late((130, None, 10), (130, 120, 10))
    assert found == (LateGradient(0, "p1", "p2", 100, 100, 1),)


def test_only_steps_that_others_have_too() -> None:
    ranks = {0: [step(1, (30, 20, 10))], 1: [step(1, (130, 120, 10)), step(2, (990, 980, 10))]}
    assert find_late_gradients([THREE], ranks, 1) == (LateGradient(0, "p1", "p2", 100, 100, 1),)


def test_modules_stand_apart() -> None:
    modules = [THREE, ddp_module((4,), ((0,),))]
    ranks = {rank: [step(1, (30, 20, 10)), step(2, (30 + 50 * rank,), module=1)] for rank in range(2)}
    assert find_late_gradients(modules, ranks, 1) == (LateGradient(1, "p0", None, 50, 50, 1),)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param({}, id="no-ranks"),
        pytest.param({0: [step(1, (30, 20, 10))]}, id="the-rank-is-missing"),
        pytest.param({1: [step(1, (30, 20, 10))]}, id="no-other-rank"),
        pytest.param({0: [step(2, (30, 20, 10))], 1: [step(1, (30, 20, 10))]}, id="no-step-in-common"),
        pytest.param({0: [step(1, (30, 20, 10))], 1: [step(1, (30, 20))]}, id="another-number-of-parameters"),
        pytest.param({rank: [step(1, (30,), module=5)] for rank in range(2)}, id="a-module-that-nobody-described"),
        pytest.param(
            {r: [recorded(1, ready={0: (3, 2, 1)}, forwards=(forward(synchronises=False),))] for r in range(2)},
            id="no-sync",
        ),
    ],
)
def test_nothing_to_compare(ranks: dict[int, list[RecordedStep]]) -> None:
    assert find_late_gradients([THREE], ranks, 1) is None


@given(st.permutations(range(4)), st.integers(0, 3), st.integers(0, 1 << 40))
def test_neither_order_nor_clocks_matter(order: list[int], shifted: int, by_ns: int) -> None:
    def ranks(shift: int) -> dict[int, list[RecordedStep]]:
        return {rank: [step(1, (130 if rank == 1 else 30 + rank, 20, 10), shift * (rank == shifted))] for rank in order}

    assert find_late_gradients([THREE], ranks(by_ns), 1) == find_late_gradients([THREE], ranks(0), 1)
