"""Facts about optimizers, from real ones."""

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from ddpprof.model import OptimizerFacts
from ddpprof.record.optimizer_hooks import optimizer_facts


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        for one in group["params"]:
            one.grad = torch.ones_like(one)
    optimizer.step()
    return optimizer


def parameters() -> list[nn.Parameter]:
    """Return 1,000 + 500 values of 4 bytes."""
    return [nn.Parameter(torch.ones(10, 100)), nn.Parameter(torch.ones(500))]


@pytest.mark.parametrize(
    ("optimizer", "facts"),
    [
        pytest.param(
            torch.optim.AdamW(parameters(), fused=True), OptimizerFacts("AdamW", 2 * 6000 + 2 * 4, False, True, True),
            id="two-moments-and-the-step-of-each-parameter",
        ),
        pytest.param(
            torch.optim.SGD(parameters(), momentum=0.9), OptimizerFacts("SGD", 6000, False, None, True), id="momentum"
        ),
        pytest.param(torch.optim.SGD(parameters()), OptimizerFacts("SGD", 0, False, None, True, True), id="stateless"),
        pytest.param(
            torch.optim.SGD(parameters(), weight_decay=0.1), OptimizerFacts("SGD", 0, False, None, True), id="decaying"
        ),
        pytest.param(torch.optim.Rprop(parameters()), OptimizerFacts("Rprop", 2 * 6000 + 2 * 4), id="never-fused"),
    ],
)  # fmt: skip
def test_bytes_of_the_state(optimizer: torch.optim.Optimizer, facts: OptimizerFacts) -> None:
    assert optimizer_facts([stepped(optimizer)]) == (replace(facts, num_groups=1, num_parameters=2),)


def test_an_optimizer_around_another_one_counts_its_state_once() -> None:
    inner = stepped(torch.optim.SGD(parameters(), momentum=0.9))
    outer = torch.optim.SGD(parameters())
    outer.state = inner.state
    assert sum(one.state_bytes for one in optimizer_facts([inner, outer])) == 6000


def test_an_optimizer_that_cannot_be_read_is_left_out() -> None:
    broken = torch.optim.SGD(parameters())
    del broken.state
    assert optimizer_facts([broken]) == ()
