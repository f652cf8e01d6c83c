"""Parameters that a script trains although no DDP module averages their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddpprof.model import UnaveragedParameters
from ddpprof.record.device import PATIENCE_S, TrainingDevice
from ddpprof.record.reducer import known_to_ddp, noting_parameters
from ddpprof.record.unaveraged import Unaveraged


@pytest.fixture(autouse=True)
def process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(DDP, "_ddp_init_helper", noting_parameters(DDP._ddp_init_helper))
    monkeypatch.setattr("ddpprof.record.reducer._noted", type(_noted())())
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _noted() -> Any:
    from ddpprof.record import reducer

    return reducer._noted


def found_after_a_step(
    called: list[DDP],
    *trained: nn.Module | nn.Parameter,
    calls_later: tuple[DDP, ...] = (),
    device: TrainingDevice | None = None,
) -> Any:
    """Take one step of an optimizer of these between the two looks; each value becomes one smaller."""
    parameters = [one for each in trained for one in ([each] if isinstance(each, nn.Parameter) else each.parameters())]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    unaveraged = Unaveraged(device or TrainingDevice())
    for ddp in called:
        unaveraged.is_called(ddp)
    unaveraged.optimizer_begins(optimizer, 0)
    unaveraged.optimizer_steps(optimizer)
    unaveraged.optimizer_begins(optimizer, 1)  # by now, ranks may differ
    unaveraged.second_look(2)  # too early: the recording has not begun
    unaveraged.first_look(3)
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimizer.step()
    for ddp in calls_later:
        unaveraged.is_called(ddp)
    unaveraged.second_look(5)
    return unaveraged.facts()["unaveraged"]


def ones(*shape: int) -> nn.Linear:
    layer = nn.Linear(*shape)
    for one in layer.parameters():
        nn.init.ones_(one)
    return layer


def test_a_module_that_is_called_is_averaged() -> None:
    ddp = DDP(ones(2, 1))
    assert found_after_a_step([ddp], ddp) == ()
    assert found_after_a_step([], ddp, calls_later=(ddp,)) == ()


def test_a_module_that_is_never_called() -> None:
    ddp, other = DDP(ones(2, 1)), DDP(ones(2, 1))
    (one,) = found_after_a_step([other], ddp, other)
    assert (one.module, one.names, one.is_wrapped) == ("Linear", ("weight", "bias"), True)
    assert (one.replica.steps, one.replica.before, one.replica.after) == ((3, 5), (1.0,) * 3, (0.0,) * 3)
    assert one.shapes == ((1, 2), (1,))


def test_a_module_that_was_not_wrapped() -> None:
    body, head = DDP(ones(2, 1)), nn.Sequential(ones(1, 1))
    (one,) = found_after_a_step([body], body, head)
    assert (one.module, one.names, one.is_wrapped) == ("Sequential", ("0.weight", "0.bias"), False)
    assert one.replica.steps == (0, 5), "it is looked at before its first step"


def test_a_parameter_outside_all_modules() -> None:
    body = DDP(ones(2, 1))
    (one,) = found_after_a_step([body], body, nn.Parameter(torch.ones(2)))
    assert one == UnaveragedParameters("", ("shape (2,)",), False, one.replica, ((2,),))


def test_parameters_that_are_not_missed() -> None:
    """Those that DDP was told to ignore, those of a module that no optimizer trains, and all of a job without DDP."""
    assert found_after_a_step([], ones(2, 1)) == ()
    inner = nn.Sequential(ones(2, 1), ones(1, 1))
    DDP._set_params_and_buffers_to_ignore_for_model(inner, ["0.weight", "0.bias"])
    ddp, idle = DDP(inner), DDP(ones(2, 1))
    assert found_after_a_step([ddp], ddp) == ()
    assert idle is not None


def test_modules_that_cannot_be_asked_do_not_matter() -> None:
    """One whose constructor does not call that of `nn.Module`, and one with an attribute ``modules`` of its own."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            pass

    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.modules = [1]

    odd = [Bare(), Lists()]
    body, head = DDP(ones(2, 1)), ones(1, 1)
    (one,) = found_after_a_step([body], body, head)
    assert (one.module, one.names, len(odd)) == ("Linear", ("weight", "bias"), 2)


def test_an_optimizer_that_takes_the_place_of_another() -> None:
    """Its identity may be that of one that the script has dropped."""
    ddp = DDP(ones(2, 1))
    unaveraged = Unaveraged(TrainingDevice())
    for _ in range(20):
        unaveraged.optimizer_steps(torch.optim.SGD(ones(1, 1).parameters(), lr=1.0))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    unaveraged.optimizer_steps(optimizer)
    unaveraged.first_look(3)
    for one in ddp.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    unaveraged.second_look(5)
    assert [one.module for one in unaveraged.facts()["unaveraged"]] == ["Linear"]


def test_values_on_an_accelerator_wait_for_it_at_most_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on an accelerator that is stuck, or on one on which DDP does not train, are not read."""
    device = TrainingDevice()
    unaveraged = Unaveraged(device)
    values = torch.ones(2, device="meta")
    assert unaveraged._values_of([values]) is None
    device.accelerators = (torch.device("meta"),)
    asked: list[float] = []
    monkeypatch.setattr(TrainingDevice, "comes_to_rest", lambda _device, patience_s: bool(asked.append(patience_s)))
    assert unaveraged._values_of([values]) is None
    assert asked == [PATIENCE_S]
    assert unaveraged._values_of([torch.ones(1)]) == (1.0,)
    assert asked == [PATIENCE_S]


def test_many_parameters_are_compared_at_once() -> None:
    """The sets of parameters are made once per module, not once per parameter."""
    made = []

    def counted(*args: Any, **kwargs: Any) -> set[int]:
        made.append(args)
        return known_to_ddp(*args, **kwargs)

    ddp, other = DDP(nn.Sequential(*(ones(1, 1) for _ in range(50)))), DDP(ones(2, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddpprof.record.unaveraged.known_to_ddp", counted)
        assert len(found_after_a_step([other], ddp, other)) == 1
    assert len(made) <= 4
