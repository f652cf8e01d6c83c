"""What is known of the job and of a step."""

from __future__ import annotations

import sys
import weakref
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec import structs
from tables import forward
from torch.distributed.rpc.internal import RPCExecMode

from ddpprof.model import StepMode
from ddpprof.model.links import LinkFacts, Traffic
from ddpprof.record import link_facts, patches
from ddpprof.record.events import Events, Listener, binding
from ddpprof.record.step_notes import (
    JobEnvironment,
    LossNotes,
    RpcNotes,
    StepNotes,
    backend_for,
    framework_at_work,
    tensor_bytes,
)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_pass_over_a_loader_without_gradients_is_an_evaluation(gradients: bool) -> None:
    notes = StepNotes()
    notes.begin_step(StepMode.LIGHT)
    with torch.set_grad_enabled(gradients):
        assert notes.pass_begins() is not gradients
    assert notes.recorded_step(3, StepMode.LIGHT, 0).began_evaluation is not gradients
    notes.end_step()
    notes.begin_step(StepMode.LIGHT)
    assert notes.recorded_step(4, StepMode.LIGHT, 0).began_evaluation is False


def test_an_evaluation_before_a_capture_is_none_of_its_first_step() -> None:
    notes = StepNotes()
    notes.begin_step(StepMode.DONE)
    with torch.no_grad():
        assert notes.pass_begins()
    notes.reopen()
    notes.begin_step(StepMode.PROFILED)
    assert notes.recorded_step(9, StepMode.PROFILED, 0).began_evaluation is False


def test_whether_a_backward_pass_uses_the_outputs_of_a_forward_pass() -> None:
    """The loss uses one of two outputs of the first pass. The second is for metrics, the third returns no tensor."""
    notes, weight = StepNotes(), torch.ones(3, requires_grad=True)
    notes.begin_step(StepMode.LIGHT)
    outputs = ({"logits": weight * 2, "other": weight * 3}, (weight * 4,), "text")
    for one in outputs:
        notes._forwards.append(forward())
        notes._note_use(one)
    outputs[0]["logits"].sum().backward()
    step = notes.recorded_step(3, StepMode.LIGHT, 0)
    assert [one.reaches_backward for one in step.forwards] == [True, False, None]
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]
    notes.end_step()
    notes.begin_step(StepMode.LIGHT)
    notes._forwards.append(forward())
    assert notes.recorded_step(4, StepMode.LIGHT, 0).forwards[0].reaches_backward is None, "not that of the step before"


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


Worker = namedtuple("Worker", "name id")


def lookup(indices: torch.Tensor) -> torch.Tensor:
    return indices


def row(to: Any = "ps", func: Any = lookup, args: Any = (), answer: Any = None) -> list[Any]:
    notes, future = RpcNotes(), torch.futures.Future[Any]()
    notes.rpc_sent(5, future, to, func, RPCExecMode.SYNC, args, {})
    if isinstance(answer, Exception):
        future.set_exception(answer)
    elif answer is not None:
        future.set_result(answer)
    (noted,) = notes.calls()
    return list(structs.astuple(noted))


def test_a_call_and_its_answer() -> None:
    callee, function, kind, start, end, request, reply = row(args=(torch.zeros(3),), answer=torch.zeros(5, 2))
    assert (callee, function, kind, start, request, reply) == ("ps", "lookup", "sync", 5, 12, 40)
    assert end > start


def test_a_call_that_fails_or_is_not_answered() -> None:
    assert row()[4:] == [None, 0, None]
    end, request, reply = row(answer=ValueError("on the callee"))[4:]
    assert (end > 5, request, reply) == (True, 0, None)


@pytest.mark.parametrize(
    ("to", "name"), [("ps", "ps"), (Worker("trainer1", 1), "trainer1"), (2, "worker 2")], ids=["name", "info", "number"]
)
def test_callees(to: Any, name: str) -> None:
    assert row(to=to)[0] == name


def test_a_method_behind_a_remote_reference_has_its_own_name() -> None:
    from torch.distributed.rpc.rref_proxy import _local_invoke

    assert row(func=_local_invoke, args=("rref", "update", (), {}))[1] == "update"


def test_bytes_of_tensors_in_what_a_call_carries() -> None:
    assert tensor_bytes(({"a": [torch.zeros(2)], "b": 7}, (torch.zeros(1, dtype=torch.int64), "text"))) == 16


def test_only_so_many_calls_are_kept() -> None:
    notes = RpcNotes()
    for _ in range(2003):
        notes.rpc_sent(0, torch.futures.Future[Any](), "ps", lookup, RPCExecMode.ASYNC, (), {})
    assert (len(notes.calls()), notes.num_left_out) == (2000, 3)
    notes.end_step()
    assert (notes.calls(), notes.num_left_out) == ((), 0)


@pytest.mark.parametrize("listens", [True, False])
def test_the_call_goes_through_once_and_unchanged(listens: bool, events: Events) -> None:
    seen, noted, future = [], [], torch.futures.Future[Any]()

    class Sent(Listener):
        def rpc_sent(self, *what: Any) -> None:
            noted.append(what[1:])

    def original(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return future

    events.bind(binding([Sent()] if listens else [], pytest.fail))
    invoke = patches._invoke_rpc(original)
    assert invoke("ps", lookup, "kind", (1,), {"k": 2}, 3.0) is future
    assert seen == [(("ps", lookup, "kind", (1,), {"k": 2}, 3.0), {})]
    assert noted == ([(future, "ps", lookup, "kind", (1,), {"k": 2})] if listens else [])


def test_torch_still_calls_what_is_wrapped() -> None:
    """`rpc_sync` and `rpc_async` find it by its name in their module, with these parameters."""
    import inspect

    from torch.distributed.rpc import api

    assert list(inspect.signature(api._invoke_rpc).parameters)[:5] == ["to", "func", "rpc_type", "args", "kwargs"]
    for function in (api.rpc_sync, api.rpc_async):
        assert "_invoke_rpc" in inspect.unwrap(function).__code__.co_names


@pytest.mark.parametrize("given", [None, "gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"])
def test_the_backend_is_that_for_the_device(given: str | None, tmp_path: Path) -> None:
    """`init_process_group()` without backend: torch calls it "undefined"."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(given, store=store, rank=0, world_size=1)
    try:
        assert backend_for(dist.group.WORLD, "cpu") == "gloo"
    finally:
        dist.destroy_process_group()


def test_a_group_without_backends_says_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _: "mine")
    assert backend_for(object(), "cuda") == "mine"


@pytest.mark.parametrize(
    ("groups", "size", "ranks"),
    [
        pytest.param([(0, 1, 2, 3)], 4, None, id="all-ranks"),
        pytest.param([(0, 1)], 2, (0, 1), id="some-ranks"),
        pytest.param([(0, 1), (0, 1)], 2, (0, 1), id="twice-the-same"),
        pytest.param([(0, 1), (0, 1, 2, 3)], None, None, id="one-module-over-all-ranks"),
        pytest.param([(0, 1), (0, 2)], None, (0, 1, 2), id="another-group-for-each-module"),
    ],
)
def test_with_whom_gradients_are_averaged(
    groups: list[tuple[int, ...]], size: int | None, ranks: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_process_group_ranks", list)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    environment = JobEnvironment()
    for group in groups:
        environment.averages_in(group)
    facts = environment.facts(0)
    assert (facts["group_size"], facts["group_ranks"]) == (size, ranks)


@pytest.mark.parametrize(("name", "known"), [("nccl", "nccl"), ("nccl2", "nccl"), ("nccl-lazy", "nccl"), ("x", "x")])
def test_other_names_of_nccl(name: str, known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _: name)
    assert backend_for(object(), "cuda") == known


def called_from(*modules: str) -> str | None:
    """The answer, asked in a function of the last module, which one of the module before has called."""
    call = framework_at_work
    for name in reversed(modules):
        namespace = {"__name__": name, "inner": call}
        exec("def outer():\n    return inner()", namespace)  # the caller's module is what counts
        call = namespace["outer"]  # type: ignore[assignment]
    return call()


@pytest.mark.parametrize(
    ("modules", "framework"),
    [
        pytest.param(("train",), None, id="the-script"),
        pytest.param(("train", "accelerate.accelerator"), "accelerate", id="accelerate"),
        pytest.param(("train", "accelerate.launchers"), None, id="only-launched"),
        pytest.param(("trl.trainer", "transformers.trainer", "accelerate.accelerator"), "transformers", id="trl"),
        pytest.param(("lightning.pytorch.trainer.trainer", "lightning.fabric.x"), "lightning", id="lightning"),
        pytest.param(("pytorch_lightning.trainer",), "lightning", id="by-its-old-name"),
        pytest.param(("train", "lightning.fabric.fabric"), "fabric", id="fabric"),
        pytest.param(("transformers.trainer_utils",), None, id="a-name-that-only-begins-so"),
    ],
)
def test_who_is_at_work(modules: tuple[str, ...], framework: str | None) -> None:
    assert called_from(*modules) == framework


def test_an_accelerator_that_made_the_module_before(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ModuleType("accelerate.state")
    state.AcceleratorState = SimpleNamespace(_shared_state={"backend": "gloo"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    assert called_from("train") == "accelerate"


def test_a_generator_of_losses_reaches_backward(events: Events) -> None:
    weight = torch.ones(2, requires_grad=True)
    losses = LossNotes()
    events.bind(binding([losses], pytest.fail))
    patches._backward(torch.autograd.backward)(factor * weight.sum() for factor in (2, 3))
    events.step_ends(1)
    assert weight.grad is not None
    assert weight.grad.tolist() == [5, 5]
    assert losses.values() == [[float(4).hex(), float(6).hex()]]


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        pytest.param(LinkFacts("eth0"), Traffic("eth0", 8, 900, 70), id="one-interface"),
        pytest.param(LinkFacts("eth0", others_used=("eth1",)), None, id="several-interfaces"),
        pytest.param(LinkFacts("lo"), None, id="one-machine"),
        pytest.param(None, None, id="unknown"),
    ],
)
def test_traffic_while_steps_are_recorded(
    links: LinkFacts | None, expected: Traffic | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = iter([(100, 30), (1000, 100)])
    monkeypatch.setattr(link_facts, "carried_bytes", lambda _interface: next(carried))
    environment = JobEnvironment()
    environment._links = links
    environment.recording_begins(2)
    assert environment.facts(10)["traffic"] == expected
