"""Which DataLoader feeds the training: real loaders, and forwards as a training loop has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ddpprof.record.feeding import Feeding

DATA = TensorDataset(torch.arange(12.0).reshape(12, 1))


class Loop:
    """A training loop that is watched as `Session` watches it."""

    def __init__(self) -> None:
        self.feeding = Feeding()

    def batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        self.feeding.loader_begins(loader)
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                self.feeding.fetches(iterator, None, 0, recording=True)
                return
            self.feeding.fetches(iterator, batch, 1, recording=True)
            yield batch

    def forward(self, *inputs: Any, grad: bool = True) -> None:
        self.feeding.forward_begins(inputs, grad, recording=True)

    def fed(self) -> list[tuple[int, int]]:
        """Per loader, how many of its batches fed the training, of how many."""
        return [(loader.num_fed, loader.num_batches) for loader in self.feeding.facts()["loaders"]]


def of(batch_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size)


def plain(loop: Loop) -> None:
    for (x,) in loop.batches(of(4)):
        loop.forward(x)


def evaluates_after_each_epoch(loop: Loop) -> None:
    train, evaluation = of(4), of(12)  # a single batch
    for _ in range(2):
        for (x,) in loop.batches(train):
            loop.forward(x)
        list(loop.batches(evaluation))


def evaluates_between_two_batches(loop: Loop) -> None:
    train, evaluation = of(4), of(6)
    for (x,) in loop.batches(train):
        loop.forward(x)
        for (y,) in loop.batches(evaluation):
            loop.forward(y, grad=False)


def evaluates_one_batch_after_each(loop: Loop) -> None:
    train, evaluation = of(4), loop.batches(of(1))
    for (x,) in loop.batches(train):
        loop.forward(x)
        loop.forward(*next(evaluation), grad=False)


def fetches_one_ahead(loop: Loop) -> None:
    ahead = None
    for (x,) in loop.batches(of(3)):
        if ahead is not None:
            loop.forward(ahead)
        ahead = x
    loop.forward(ahead)


def two_at_once(loop: Loop) -> None:
    for (x,), (y,) in zip(loop.batches(of(4)), loop.batches(of(4)), strict=True):
        loop.forward(x, y)


def in_turns(loop: Loop) -> None:
    other = loop.batches(of(6))
    for number, (x,) in enumerate(loop.batches(of(3))):
        loop.forward(x)
        if number % 2:
            loop.forward(*next(other))


def a_teacher_looks_first(loop: Loop) -> None:
    for (x,) in loop.batches(of(4)):
        loop.forward(x, grad=False)
        loop.forward(x)


@pytest.mark.parametrize(
    ("train", "fed"),
    [
        (plain, [(3, 3)]),
        (evaluates_after_each_epoch, [(6, 6), (0, 2)]),
        (evaluates_between_two_batches, [(3, 3), (0, 6)]),
        (evaluates_one_batch_after_each, [(3, 3), (0, 3)]),
        (fetches_one_ahead, [(3, 4)]),
        (two_at_once, [(3, 3), (3, 3)]),
        (in_turns, [(2, 2), (4, 4)]),
        (a_teacher_looks_first, [(3, 3)]),
    ],
)
def test_which_loader_feeds(train: Callable[[Loop], None], fed: list[tuple[int, int]]) -> None:
    loop = Loop()
    train(loop)
    assert sorted(loop.fed()) == sorted(fed)


def test_batches_that_reach_the_model_in_parts() -> None:
    loop = Loop()
    for (x,) in loop.batches(of(4)):
        loop.forward(x[:2])
    (loader,) = loop.feeding.facts()["loaders"]
    assert (loader.num_fed, loader.num_passed_on, len(loader.batches)) == (3, 0, 3)


def test_epochs_are_those_that_went_to_their_end_and_the_last() -> None:
    loop, sampler = Loop(), DistributedSampler(DATA, num_replicas=1, rank=0)
    loader = DataLoader(DATA, 4, sampler=sampler)
    next(loop.batches(loader))  # a look
    for epoch in (3, 4):
        sampler.set_epoch(epoch)
        list(loop.batches(loader))
    next(loop.batches(loader))
    (loader,) = loop.feeding.facts()["loaders"]
    assert (loader.epochs_set, loader.num_iterations) == ((3, 4, 4), 4)


class OwnBatches(BatchSampler):
    pass


class OwnOrder(DistributedSampler):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


@pytest.mark.parametrize(
    ("loader", "sampler", "epochs"),
    [
        pytest.param(of(4), "SequentialSampler", None, id="default"),
        pytest.param(DataLoader(DATA, None), "SequentialSampler", None, id="without-batches"),
        pytest.param(
            DataLoader(DATA, batch_sampler=OwnBatches(SequentialSampler(DATA), 4, False)),
            "OwnBatches",
            None,
            id="batches",
        ),
        pytest.param(
            DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 1, 0)), "DistributedSampler", [0], id="distributed"
        ),
        pytest.param(DataLoader(DATA, 4, sampler=OwnOrder(DATA, 1, 0)), "OwnOrder", None, id="an-order-of-its-own"),
    ],
)
def test_what_draws_the_indices(loader: DataLoader[Any], sampler: str, epochs: list[int] | None) -> None:
    loop = Loop()
    list(loop.batches(loader))
    (described,) = loop.feeding.facts()["loaders"]
    assert (described.sampler, described.epochs_set) == (sampler, epochs if epochs is None else tuple(epochs))


def test_loaders_without_end_are_not_all_kept() -> None:
    loop, kept = Loop(), []
    for _ in range(40):
        kept.append(of(4))
        list(loop.batches(kept[-1]))
    assert len(loop.feeding.facts()["loaders"]) == 32
