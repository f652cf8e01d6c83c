"""What is told of the training's events, to whom, and what happens if a listener fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pulse_writers import Clock, Reducer, backward, decoded

from ddpprof.model.pulse import Activity, StepFlag
from ddpprof.record import patches
from ddpprof.record.events import Events, Listener, binding
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.session import WatchedSteps
from ddpprof.record.steps import StepDetector


class Noted(Listener):
    """Keeps what it is told."""

    def __init__(self, said: list[Any]) -> None:
        self.said = said

    def begins(self, activity: int) -> None:
        self.said.append(Activity(activity).name)

    def flagged(self, flag: int) -> None:
        self.said.append(StepFlag(flag).name)

    def step_ends(self, num_steps: int) -> None:
        self.said.append(num_steps)

    def discards_checkpoints(self) -> bool:
        return True


class Fails(Listener):
    def step_ends(self, num_steps: int) -> None:
        raise ValueError(f"step {num_steps}")


class RaisesNothing(Noted):
    may_raise = False


def test_an_event_calls_its_listeners_in_their_order(events: Events) -> None:
    said: list[Any] = []
    events.bind(binding([Noted(said), RaisesNothing(said)], pytest.fail))
    events.step_ends(3)
    assert (said, events.discards_checkpoints()) == ([3, 3], True)


def test_a_listener_that_raises_nothing_is_called_without_a_guard(events: Events) -> None:
    alone = RaisesNothing([])
    events.bind(binding([alone], pytest.fail))
    assert events.begins == alone.begins


def test_nobody_listens_to_what_is_left_out_and_in_the_end(events: Events) -> None:
    said: list[Any] = []
    events.bind(binding([Noted(said)], pytest.fail, without=("begins",)))
    events.begins(0)
    events.fetch_begins()
    assert (said, events.heard) == ([], {"flagged", "step_ends", "discards_checkpoints"})
    events.unbind()
    events.step_ends(1)
    assert (said, events.heard, events.discards_checkpoints()) == ([], set(), False)


def test_an_error_of_a_listener_reaches_the_recording_and_no_other_listener(events: Events) -> None:
    said: list[Any] = []
    errors: list[Exception] = []
    events.bind(binding([Fails(), Noted(said)], errors.append))
    events.step_ends(7)
    assert ([str(error) for error in errors], said) == (["step 7"], [])


@pytest.fixture
def said() -> list[Any]:
    return []


@pytest.fixture
def watched(said: list[Any], events: Events) -> WatchedSteps:
    """Steps that are not recorded, of a recording that keeps what it is told."""
    session: Any = SimpleNamespace(
        finder=StepDetector(lambda: True),
        count_step=lambda: said.append("a step"),
        give_up=lambda error: said.append(f"gives up: {error}"),
    )
    steps = WatchedSteps(session)
    events.bind(binding([steps, Noted(said)], pytest.fail))
    return steps


@pytest.mark.usefixtures("watched")
def test_an_optimizer_ends_a_step_that_has_synchronized(said: list[Any], events: Events) -> None:
    optimizer: Any = object()
    events.optimizer_ends(optimizer)
    events.forward_begins(SimpleNamespace(require_backward_grad_sync=True))  # type: ignore[arg-type]
    events.optimizer_ends(optimizer)
    assert said == ["OTHER", "FORWARD", "a step"]


@pytest.mark.usefixtures("watched")
def test_a_forward_without_gradients_is_an_evaluation(said: list[Any], events: Events) -> None:
    with torch.no_grad():
        events.forward_begins(object())  # type: ignore[arg-type]
    assert said == ["EVALUATED", "EVALUATION"]


def test_watched_steps_cost_no_guard(watched: WatchedSteps, events: Events) -> None:
    assert (events.forward_begins, events.optimizer_ends) == (watched.forward_begins, watched.optimizer_ends)


@pytest.mark.usefixtures("watched")
def test_what_fails_in_a_watched_step_ends_the_watching_alone(said: list[Any], events: Events) -> None:
    events.forward_begins(object())  # type: ignore[arg-type]
    assert said == ["gives up: 'object' object has no attribute 'require_backward_grad_sync'"]


@pytest.mark.parametrize("skips", [pytest.param(False, id="a-step"), pytest.param(True, id="an-overflow")])
def test_only_a_skipped_step_of_a_scaler_is_counted_beside_its_optimizer(events: Events, skips: bool) -> None:
    class Skipped(Listener):
        def optimizer_skipped(self, optimizer: Any) -> None:
            skipped.append(optimizer)

    def step(_scaler: object, _optimizer: object) -> None:
        events.num_optimizer_steps += not skips

    skipped: list[Any] = []
    events.bind(binding([Skipped()], pytest.fail))
    patches._scaler_step(step)(None, "optimizer")
    assert skipped == (["optimizer"] if skips else [])


def in_another_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_waiting_outside_backward_passes_is_waiting_too(pulse: PulseWriter, clock: Clock, events: Events) -> None:
    """In a broadcast of buffers within a forward of 100 ns, and in an all-reduce of the script."""

    def takes(ns: int) -> str:
        clock.now_ns += ns
        return "done"

    waits = patches._waits_for_ranks(lambda work, *args: work(*args))
    events.bind(binding([pulse], pytest.fail))
    pulse.begins(Activity.FORWARD)
    assert waits(lambda: waits(takes, 70)) == "done"  # as within `join()`
    in_another_thread(lambda: waits(takes, 0))
    clock.now_ns += 30
    backward(pulse, clock, Reducer(5), 20)
    pulse.begins(Activity.BACKWARD)
    waits(takes, 4)  # of a comm hook: the times of gradients contain it
    pulse.begins(Activity.OTHER)
    waits(takes, 200)
    clock.now_ns += 1
    with pytest.raises(ZeroDivisionError):
        waits(lambda: 1 // 0)
    pulse.step_ends(1)
    backward(pulse, clock, Reducer(5), 20)
    pulse.step_ends(2)
    steps = decoded(pulse).steps
    assert steps.forward_ns.tolist() == [30, 0]
    assert steps.wait_ns.tolist() == [285, 15]
    assert steps.backward_ns.tolist() == [294, 20]
    assert steps.own_ns.tolist()[1] == 5


def test_other_threads_wait_unseen(pulse: PulseWriter, clock: Clock, events: Events) -> None:
    def takes(_work: object) -> None:
        clock.now_ns += 70

    events.bind(binding([pulse], pytest.fail))
    in_another_thread(lambda: patches._waits_for_ranks(takes)(object()))
    backward(pulse, clock, Reducer(5), 20)
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [15]
    assert decoded(pulse).steps.backward_ns.tolist() == [20]


def test_a_loader_gives_its_batches_and_its_end(pulse: PulseWriter, clock: Clock, events: Events) -> None:
    def fetch(batches: Iterator[int]) -> int:
        clock.now_ns += 40
        return next(batches)

    events.bind(binding([pulse], pytest.fail))
    batches, next_batch = iter([7, 8]), patches._next(fetch)
    fetched: list[int] = []
    in_another_thread(lambda: fetched.append(next_batch(batches)))
    assert fetched == [7]  # other threads fetch unseen
    assert next_batch(batches) == 8
    with pytest.raises(StopIteration):
        next_batch(batches)
    pulse.step_ends(1)
    steps = decoded(pulse).steps
    assert (steps.data_ns.tolist(), steps.flags.tolist()) == ([80], [int(StepFlag.RAN_OUT)])


def test_passes_inside_others_and_in_other_threads_are_part_of_them(events: Events) -> None:
    class Began(Listener):
        def backward_begins(self, loss: Any) -> None:
            began.append(loss)

    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
            run("inside another")
            return gradient

    began: list[Any] = []
    events.bind(binding([Began()], pytest.fail))
    run = patches._backward(lambda _tensors: None)
    Reentrant.apply(torch.ones((), requires_grad=True)).backward()
    in_another_thread(lambda: run("in another thread"))
    run("alone")
    assert began == ["alone"]
