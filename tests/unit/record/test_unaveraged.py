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
from ddpprof.record.reducer import noting_parameters
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


def found_after_a_step(called: list[DDP], *trained: nn.Module | nn.Parameter, calls_later: tuple[DDP, ...] = ()) -> Any:
    """Take one step of an optimizer of these between the two looks; each value becomes one smaller."""
    parameters = [one for each in trained for one in ([each] if isinstance(each, nn.Parameter) else each.parameters())]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    unaveraged = Unaveraged()
    for ddp in called:
        unaveraged.is_called(ddp)
    unaveraged.optimizer_steps(optimizer)
    unaveraged.first_look(3)
    unaveraged.second_look(3)  # at the same step, which tells nothing
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


def test_a_module_that_was_not_wrapped() -> None:
    body, head = DDP(ones(2, 1)), nn.Sequential(ones(1, 1))
    (one,) = found_after_a_step([body], body, head)
    assert (one.module, one.names, one.is_wrapped) == ("Sequential", ("0.weight", "0.bias"), False)


def test_a_parameter_outside_all_modules() -> None:
    body = DDP(ones(2, 1))
    (one,) = found_after_a_step([body], body, nn.Parameter(torch.ones(2)))
    assert one == UnaveragedParameters("", ("shape (2,)",), False, one.replica)


def test_parameters_that_are_not_missed() -> None:
    """Those that DDP was told to ignore, those of a module that no optimizer trains, and all of a job without DDP."""
    assert found_after_a_step([], ones(2, 1)) == ()
    inner = nn.Sequential(ones(2, 1), ones(1, 1))
    DDP._set_params_and_buffers_to_ignore_for_model(inner, ["0.weight", "0.bias"])
    ddp, idle = DDP(inner), DDP(ones(2, 1))
    assert found_after_a_step([ddp], ddp) == ()
    assert idle is not None
