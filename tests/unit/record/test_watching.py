"""Steps after the recorded ones: they are counted, and what goes wrong there never reaches the training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ddpprof.model.pulse import Activity, StepFlag
from ddpprof.record.steps import StepDetector
from ddpprof.record.watching import WatchedSteps


class Noted:
    """Stands for the pulse and for the recording: keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def begins(self, activity: int) -> None:
        self.said.append(Activity(activity).name)

    def flag(self, flag: StepFlag) -> None:
        self.said.append(flag.name)

    def waits(self, original: Callable[..., Any], *work: Any) -> Any:
        self.said.append("waits")
        return original(*work)

    def forward_ends(self, _ddp: object, _inner_end_ns: int) -> None:
        raise AssertionError("no forward ends here")

    def backward_begins(self, _loss: object) -> None:
        self.said.append("BACKWARD")

    def backward_ends(self) -> None:
        raise RuntimeError("the reducer has gone")


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def steps(noted: Noted) -> WatchedSteps:
    return WatchedSteps(
        pulse=noted,  # type: ignore[arg-type]
        finder=StepDetector(lambda: True),
        training_thread=threading.get_ident(),
        count_step=lambda: noted.said.append("a step"),
        ddp_forward_fails=lambda _ddp, error: noted.said.append(str(error)),
        runs_out=lambda _iterator: noted.said.append("the loader is empty"),
        give_up=lambda error: noted.said.append(f"gives up: {error}"),
    )


def test_an_optimizer_ends_a_step_that_has_synchronised(steps: WatchedSteps, noted: Noted) -> None:
    optimizer = object()
    steps.optimizer_ends(optimizer)
    steps.ddp_forward_begins(SimpleNamespace(require_backward_grad_sync=True))  # type: ignore[arg-type]
    steps.optimizer_begins((), {})
    steps.optimizer_ends(optimizer)
    assert noted.said == ["OTHER", "FORWARD", "OPTIMIZER", "a step"]


def test_a_loader_gives_its_batches_and_its_end(steps: WatchedSteps, noted: Noted) -> None:
    batches = iter([7])
    assert steps.loader_fetches(next, batches) == 7
    with pytest.raises(StopIteration):
        steps.loader_fetches(next, batches)
    assert noted.said == ["DATA", "OTHER", "DATA", "RAN_OUT", "the loader is empty", "OTHER"]


def test_waiting_for_other_ranks_is_noted(steps: WatchedSteps, noted: Noted) -> None:
    assert steps.ddp_sync_buffers(str, 3) == "3"
    assert steps.work_waits(str, 7) == "7"
    assert noted.said == ["waits", "waits"]


def test_other_threads_fetch_unseen(steps: WatchedSteps, noted: Noted) -> None:
    fetched: list[int] = []
    batches: Iterator[int] = iter([7])
    thread = threading.Thread(target=lambda: fetched.append(steps.loader_fetches(next, batches)))
    thread.start()
    thread.join()
    assert (fetched, noted.said) == ([7], [])


def test_missing_gradients_are_noted(steps: WatchedSteps, noted: Noted) -> None:
    steps.ddp_forward_fails(object(), RuntimeError("Expected to have finished reduction"))  # type: ignore[arg-type]
    assert noted.said == ["Expected to have finished reduction"]


def test_what_fails_here_ends_the_watching_alone(steps: WatchedSteps, noted: Noted) -> None:
    steps.backward_begins(())
    steps.backward_is_over()
    steps.ddp_forward_begins(object())  # type: ignore[arg-type]
    assert [one for one in noted.said if one != "BACKWARD"] == [
        "gives up: the reducer has gone",
        "gives up: 'object' object has no attribute 'require_backward_grad_sync'",
    ]
