"""Steps after the recorded ones: they are counted, and what goes wrong there never reaches the training."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ddpprof.model.pulse import Activity, StepFlag
from ddpprof.record import patches
from ddpprof.record.pulse import NoPulse
from ddpprof.record.steps import StepDetector
from ddpprof.record.watching import WatchedSteps


class Noted(NoPulse):
    """Stands for the pulse and for the recording: keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Any] = []

    def begins(self, activity: int) -> None:
        self.said.append(Activity(activity).name)

    def flag(self, flag: int) -> None:
        self.said.append(StepFlag(flag).name)

    def work_waits(self, original: Callable[..., Any], /, *work: Any, **kwargs: Any) -> Any:
        self.said.append("waits")
        return original(*work, **kwargs)


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def steps(noted: Noted) -> WatchedSteps:
    recording: Any = SimpleNamespace(
        pulse=noted,
        finder=StepDetector(lambda: True),
        count_step=lambda: noted.said.append("a step"),
        ddp_forward_fails=lambda _ddp, error: noted.said.append(str(error)),
        loader_runs_out=lambda _iterator: noted.said.append("the loader is empty"),
        give_up=lambda error: noted.said.append(f"gives up: {error}"),
    )
    return WatchedSteps(recording)


def test_an_optimizer_ends_a_step_that_has_synchronised(steps: WatchedSteps, noted: Noted) -> None:
    optimizer = object()
    steps.optimizer_ends(optimizer)
    steps.ddp_forward_begins(SimpleNamespace(require_backward_grad_sync=True))  # type: ignore[arg-type]
    steps.optimizer_ends(optimizer)
    assert noted.said == ["OTHER", "FORWARD", "a step"]


def test_the_end_of_a_loader_is_noted(steps: WatchedSteps, noted: Noted) -> None:
    batches = iter([7])
    assert steps.loader_fetches(next, batches) == 7
    with pytest.raises(StopIteration):
        steps.loader_fetches(next, batches)
    assert noted.said == ["the loader is empty"]


def test_the_pulse_takes_the_other_events(steps: WatchedSteps, noted: Noted) -> None:
    for name in ("ddp_post_forward", "backward_begins", "backward_is_over", "optimizer_begins", "work_waits"):
        assert getattr(steps, name) == getattr(noted, name)


def test_waiting_for_other_ranks_is_noted(steps: WatchedSteps, noted: Noted) -> None:
    assert steps.ddp_sync_buffers(str, 3) == "3"
    assert steps.work_waits(str, 7) == "7"
    assert noted.said == ["waits", "waits"]


def test_missing_gradients_are_noted(steps: WatchedSteps, noted: Noted) -> None:
    steps.ddp_forward_fails(object(), RuntimeError("Expected to have finished reduction"))  # type: ignore[arg-type]
    assert noted.said == ["Expected to have finished reduction"]


def test_what_fails_here_ends_the_watching_alone(steps: WatchedSteps, noted: Noted) -> None:
    steps.ddp_forward_begins(object())  # type: ignore[arg-type]
    assert noted.said == ["gives up: 'object' object has no attribute 'require_backward_grad_sync'"]


@pytest.mark.parametrize("skips", [pytest.param(False, id="a-step"), pytest.param(True, id="an-overflow")])
def test_only_a_skipped_step_of_a_scaler_is_counted_beside_its_optimizer(
    monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    finder, skipped = StepDetector(lambda: True), list[str]()
    monkeypatch.setattr(patches, "_active", SimpleNamespace(finder=finder, scaler_skipped=skipped.append))
    step = patches._scaler_step(lambda _scaler, optimizer: None if skips else finder.optimizer_stepped(id(optimizer)))
    step(None, "optimizer")
    assert skipped == (["optimizer"] if skips else [])
