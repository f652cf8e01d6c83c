"""Which ranks are profiled."""

from __future__ import annotations

import pytest

from ddpprof.cli.arguments import numbers
from ddpprof.ranks_and_steps import MOST, Numbers, default_steps, is_profiled, options_for, rule
from ddpprof.record.settings import Settings
from ddpprof.record.steps import Schedule


def profiled(world_size: int, chosen: tuple[tuple[int, int], ...] = ()) -> list[int]:
    return [rank for rank in range(world_size) if is_profiled(rank, world_size, chosen)]


@pytest.mark.parametrize("world_size", [1, 8, MOST])
def test_in_a_job_of_usual_size_all_are(world_size: int) -> None:
    assert profiled(world_size) == list(range(world_size))
    assert rule(world_size, ()) is None


@pytest.mark.parametrize("world_size", [MOST + 1, 256, 1000, 1024, 4096])
def test_in_a_large_job_some_are_and_each_place_of_a_host_has_its_turn(world_size: int) -> None:
    ranks = profiled(world_size)
    assert 32 <= len(ranks) <= 64
    assert {rank % 8 for rank in ranks} == set(range(8))
    assert f"one in {ranks[1]} of the {world_size} ranks" in (rule(world_size, ()) or "")


def test_the_users_choice_goes_before_the_rule() -> None:
    assert profiled(1024, ((0, 1), (512, 512))) == [0, 1, 512]
    assert rule(1024, ((0, 1), (512, 512))) == (
        "of the 1024 ranks, --profile-ranks selected these for profiling: 0-1, 512"
    )
    assert profiled(4, ((1, 1),)) == [1]


@pytest.mark.parametrize(
    ("num_steps", "on_accelerator", "expected"),
    [
        (1, False, None),
        (2, False, (1, 0, 0, 1)),
        (3, False, (1, 0, 1, 1)),
        (5, False, (1, 0, 1, 3)),
        (10, False, (2, 2, 1, 5)),
        (16, False, (3, 6, 1, 5)),
        (11, True, None),
        (12, True, (11, 0, 0, 1)),
        (15, True, (11, 0, 1, 3)),
        (24, True, (11, 6, 1, 5)),
    ],
)
def test_the_options_fit_into_the_training(
    num_steps: int, on_accelerator: bool, expected: tuple[int, ...] | None
) -> None:
    options = options_for(num_steps, on_accelerator)
    if expected is None:
        assert options is None
        return
    assert options is not None
    skip, cost, warmup, steps = (int(word) for word in options.split()[1::2])
    assert (skip, cost, warmup, steps) == expected
    settings = Settings(out="", skip_first=skip, cost_steps=cost, warmup=warmup, steps=steps)
    assert Schedule(settings, on_accelerator).num_steps <= num_steps


@pytest.mark.parametrize(("on_accelerator", "enough"), [(False, 17), (True, 25)])
def test_a_training_that_is_long_enough_needs_no_options(on_accelerator: bool, enough: int) -> None:
    assert default_steps(on_accelerator) == enough
    assert Schedule(Settings(out=""), on_accelerator).num_steps == enough
    assert options_for(enough, on_accelerator) == ""
    assert options_for(enough - 1, on_accelerator)


@pytest.mark.parametrize(
    ("asked", "there", "left"),
    [
        ("0-7,64", range(8), "64"),
        ("0-7", range(8), ""),
        ("0-999999999999", [0, 1, 5], "2-4, 6-999999999999"),
        ("3,1", [2], "3, 1"),
        ("2-4", [], "2-4"),
    ],
)
def test_what_was_asked_for_and_is_not_there(asked: str, there: list[int], left: str) -> None:
    lacking = numbers(asked).without(there)
    assert (str(lacking), bool(lacking)) == (left, bool(left))


def test_numbers_next_to_each_other_are_a_span() -> None:
    assert str(Numbers.of([4, 12, 6, 13, 14, 4])) == "4, 6, 12-14"
    assert [Numbers.of(some).are_several for some in ([3], [3, 4], [3, 5])] == [False, True, True]
