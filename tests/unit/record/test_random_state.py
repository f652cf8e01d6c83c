"""A digest of the generators: it follows what is drawn, draws nothing, and leaves no trace."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ddpprof.record.random_state import random_state


def test_it_is_equal_as_long_as_the_same_numbers_are_drawn() -> None:
    torch.manual_seed(3)
    seeded = random_state(())
    assert random_state(()) == seeded
    torch.rand(1)
    drawn = random_state(())
    assert drawn != seeded
    torch.manual_seed(3)
    assert random_state(()) == seeded
    torch.rand(1)
    assert random_state(()) == drawn
    torch.manual_seed(4)
    assert random_state(()) != seeded


def test_it_draws_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    random_state(())
    assert torch.equal(torch.rand(4), expected)


def test_an_accelerator_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    device, states = torch.device("cuda", 0), [torch.tensor([1, 2], dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda which: states[which.index])
    first = random_state([device])
    assert first == random_state([device]) != random_state(())
    states[0] = torch.tensor([1, 3], dtype=torch.uint8)
    assert random_state([device]) not in (first, None)


def test_nothing_is_known_if_an_accelerator_does_not_tell() -> None:
    assert random_state([torch.device("mps")]) is None


def test_the_profiler_does_not_see_it() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        random_state(())
    assert [event.name for event in seen.events()] == []
