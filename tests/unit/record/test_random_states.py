# ruff: noqa: NPY002 (the generators that datasets draw from)
"""Digests of the generators: they follow what is drawn, draw nothing, and leave no trace."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ddpprof.record.random_states import random_states


def test_they_are_equal_as_long_as_the_same_numbers_are_drawn() -> None:
    torch.manual_seed(3)
    seeded = random_states(())
    assert random_states(()) == seeded
    torch.rand(1)
    drawn = random_states(())
    assert drawn != seeded
    torch.manual_seed(3)
    assert random_states(()) == seeded
    torch.rand(1)
    assert random_states(()) == drawn
    torch.manual_seed(4)
    assert random_states(()) != seeded


def test_they_draw_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    random_states(())
    assert torch.equal(torch.rand(4), expected)


def test_an_accelerators_own(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, state = [torch.device("cuda", 0), torch.device("cuda", 1)], torch.zeros(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda which: state if which.index else torch.zeros(16))
    before = random_states(devices)
    assert before.keys() == {"cpu", "cuda", "numpy", "random"}
    state[3] = 1
    after = random_states(devices)
    assert (after["cpu"] == before["cpu"], after["cuda"] == before["cuda"]) == (True, False)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        pytest.param("numpy", np.random.rand, id="numpy"),
        pytest.param("random", random.random, id="python"),
    ],
)
def test_those_of_libraries(name: str, draw: Callable[[], Any]) -> None:
    np.random.seed(3)
    random.seed(3)
    before, first = random_states(()), draw()
    after = random_states(())
    assert {one for one in before if before[one] != after[one]} == {name}
    np.random.seed(3)
    random.seed(3)
    assert random_states(()) == before
    assert draw() == first


def test_one_that_does_not_tell_is_left_out() -> None:
    assert random_states([torch.device("mps")]).keys() == {"cpu", "numpy", "random"}


def test_the_profiler_does_not_see_it() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        random_states(())
    assert [event.name for event in seen.events()] == []
