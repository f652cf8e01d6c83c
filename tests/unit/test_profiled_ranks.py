"""Which ranks are profiled."""

import pytest

from ddpprof.ranks_and_steps import MOST, is_profiled, rule


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
    assert f"every {ranks[1]}th" in (rule(world_size, ()) or "")


def test_the_users_choice_goes_before_the_rule() -> None:
    assert profiled(1024, ((0, 1), (512, 512))) == [0, 1, 512]
    assert rule(1024, ((0, 1), (512, 512))) == (
        "of 1024 ranks, only the ones given by --profile-ranks were profiled: 0-1, 512"
    )
    assert profiled(4, ((1, 1),)) == [1]
