"""Losses are seen, and the training sees the same."""

from __future__ import annotations

import torch

from ddpprof.record import patches
from ddpprof.record.losses import LossNotes


class Session:
    def __init__(self) -> None:
        self.losses = LossNotes()

    def backward_begins(self, tensors: object) -> None:
        self.losses.backward_begins(tensors)

    def backward_is_over(self) -> None:
        pass


def test_a_generator_of_losses_reaches_backward() -> None:
    weight = torch.ones(2, requires_grad=True)
    session = Session()
    try:
        patches.activate(session)  # type: ignore[arg-type]
        patches._backward(torch.autograd.backward)(factor * weight.sum() for factor in (2, 3))
    finally:
        patches.activate(None)
    session.losses.end_step()
    assert weight.grad is not None
    assert weight.grad.tolist() == [5, 5]
    assert session.losses.values() == [[float(4).hex(), float(6).hex()]]
