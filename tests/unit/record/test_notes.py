"""The recorder notes what happens in a step; these tests call it as a training would."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ddpprof.model import StepMode
from ddpprof.record.notes import StepNotes

LOADER = DataLoader(TensorDataset(torch.zeros(4, 1)), 2)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_pass_over_a_loader_without_gradients_is_an_evaluation(gradients: bool) -> None:
    notes = StepNotes()
    notes.begin_step(StepMode.LIGHT)
    with torch.set_grad_enabled(gradients):
        assert notes.loader_begins(LOADER) is not gradients
    assert notes.recorded_step(3, StepMode.LIGHT, 0).began_evaluation is not gradients
    notes.end_step()
    notes.begin_step(StepMode.LIGHT)
    assert notes.recorded_step(4, StepMode.LIGHT, 0).began_evaluation is False


def test_an_evaluation_before_a_capture_is_none_of_its_first_step() -> None:
    notes = StepNotes()
    notes.begin_step(StepMode.DONE)
    with torch.no_grad():
        assert notes.loader_begins(LOADER)
    notes.reopen()
    notes.begin_step(StepMode.PROFILED)
    assert notes.recorded_step(9, StepMode.PROFILED, 0).began_evaluation is False


class Wrapper:
    def __init__(self) -> None:
        self.module = torch.nn.Linear(1, 1)


def test_modules_that_are_all_in_evaluation_mode_are_evaluating() -> None:
    notes = StepNotes()
    assert not notes.is_evaluating(), "there is none"
    ddps = [Wrapper() for _ in range(2)]
    notes._seen = [weakref.ref(ddp) for ddp in ddps]
    found = []
    for ddp in ddps:
        found.append(notes.is_evaluating())
        ddp.module.eval()
    assert [*found, notes.is_evaluating()] == [False, False, True]
    del ddp
    ddps.clear()
    assert not notes.is_evaluating(), "they are gone"
