"""Which parameters are called unused, where torch's own notes of them are few."""

from __future__ import annotations

import pytest
import torch
from accelerator import emulate
from torch.nn.parallel import DistributedDataParallel

from ddpprof.model import DdpModule, StepMode
from ddpprof.record.ddp_module import RecordedModule


class Rotating(torch.nn.Module):
    """A branch at a time, and one that never has its turn."""

    def __init__(self, num_used: int = 4) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(8, 8)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.turn, self.num_used = 0, num_used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        branch: torch.Tensor = self.branches[self.turn % self.num_used](self.shared(x))
        return branch


def record(model: torch.nn.Module, steps: int = 30, every: int = 1, **settings: bool) -> DdpModule:
    with emulate():
        ddp = DistributedDataParallel(model, **settings)
    module = RecordedModule(ddp, 0)
    for step in range(steps):
        if step > 11:
            module.begin_step(StepMode.LIGHT if step % every == 0 else StepMode.OFF)
        loss = ddp(torch.randn(4, 8)).sum()
        module.synchronizing_forward_is_over(1)
        loss.backward()
        module.passes()
    module.begin_step(StepMode.DONE)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in ddp.parameters())  # type: ignore[attr-defined]
    return module.describe()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("num_used", "expected"),
    [
        pytest.param(4, (), id="branches-take-turns"),
        pytest.param(3, ("branches.3.weight", "branches.3.bias"), id="one-never-has-its-turn"),
    ],
)
def test_on_an_accelerator_each_recorded_pass_counts(num_used: int, expected: tuple[str, ...]) -> None:
    described = record(Rotating(num_used), find_unused_parameters=True)
    assert described.unused == expected
    assert described.num_lacking_passes == described.num_searched_passes == 18


@pytest.mark.usefixtures("process_group")
def test_branches_that_have_their_turn_only_in_steps_that_are_not_recorded_are_used() -> None:
    described = record(Rotating(), every=4, find_unused_parameters=True)
    assert described.unused == ()
    assert described.num_lacking_passes == described.num_searched_passes == 5


@pytest.mark.usefixtures("process_group")
def test_without_the_search_none_is_unused() -> None:
    layers = [torch.nn.Linear(8, 8) for _ in range(4)]  # of few parameters, two passes may take the same times
    described = record(torch.nn.Sequential(*layers))
    assert (described.unused, described.num_searched_passes) == ((), 18)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(("is_sparse", "used"), [(False, {0: 3 / 8}), (True, {})], ids=["dense", "sparse"])
def test_the_rows_of_an_embedding_that_got_a_gradient(is_sparse: bool, used: dict[int, float]) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4, sparse=is_sparse), torch.nn.Linear(4, 4))
    ddp = DistributedDataParallel(model)
    module, optimizer = RecordedModule(ddp, 0), torch.optim.SGD(ddp.parameters())
    module.optimizer_begins(optimizer)  # before any gradient exists
    for rows in ([1, 1, 5, 7], [0, 2]):  # only the first step counts
        ddp.zero_grad()
        ddp(torch.tensor(rows)).sum().backward()
        module.optimizer_begins(torch.optim.SGD(ddp.parameters()))
    recorded = [one.used_rows for one in module.describe().parameters]
    assert recorded == [used.get(0), None, None]


@pytest.mark.usefixtures("process_group")
def test_of_a_large_embedding_only_some_rows_are_read() -> None:
    ddp = DistributedDataParallel(torch.nn.EmbeddingBag(40_000, 2))
    module = RecordedModule(ddp, 0)
    ddp(torch.arange(0, 40_000, 4).reshape(1, -1)).sum().backward()
    module.optimizer_begins(torch.optim.SGD(ddp.parameters()))
    (weight,) = module.describe().parameters
    assert weight.used_rows == pytest.approx(0.25, abs=0.02)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("does", "used", "discarded"),
    [
        pytest.param(("backward", "own", "zero"), 3, 0, id="used"),
        pytest.param(("backward", "zero", "backward", "own", "zero"), 3, 3, id="every-second-one-is-discarded"),
        pytest.param(("backward", "other", "zero"), 0, 2, id="another-optimizer-steps"),
        pytest.param(("backward", "backward", "own", "zero"), 6, 0, id="accumulated"),
        pytest.param(("backward", "off", "zero"), 0, 0, id="the-next-steps-are-not-recorded"),
    ],
)
def test_gradients_that_no_optimizer_uses(does: tuple[str, ...], used: int, discarded: int) -> None:
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    own, other = torch.optim.SGD(ddp.parameters()), torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
    module = RecordedModule(ddp, 0)
    for _ in range(3):
        module.begin_step(StepMode.LIGHT)
        for what in does:
            match what:
                case "backward":
                    loss = ddp(torch.randn(2, 4)).sum()
                    module.synchronizing_forward_is_over(1)
                    module.backward_begins()
                    loss.backward()
                    module.backward_is_over(1)
                case "zero":
                    ddp.zero_grad()
                case "off":
                    module.begin_step(StepMode.OFF)
                case _:
                    module.optimizer_begins(own if what == "own" else other)
    described = module.describe()
    assert (described.num_used_passes, described.num_discarded_passes) == (used, discarded)


@pytest.mark.usefixtures("process_group")
def test_the_largest_buffer_has_a_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    described = record(model, steps=14)
    assert (described.num_buffers, described.largest_buffer, described.largest_buffer_bytes) == (
        3,
        "1.running_mean",
        32,
    )
    assert record(torch.nn.Linear(8, 8), steps=14).largest_buffer is None
