# ruff: noqa: NPY002 (the generators that datasets draw from)
"""Does a dataset draw from the generators that a DataLoader seeds in its workers?"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from ddpprof.record.random_draws import draws_in_workers


class Plain(Dataset[Any]):
    """A dataset that applies what it is given to an index; only its constructor draws."""

    def __init__(self, transform: Callable[[int], Any] | None = None) -> None:
        self.values = torch.randn(4)
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.values[index] if self.transform is None else self.transform(index)

    def __len__(self) -> int:
        return 4


class Noisy(Plain):
    def __getitem__(self, index: int) -> Any:
        return self.values[index] + self.noise()

    def noise(self) -> Any:
        return np.random.randn()


class Numbered(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(2, generator=torch.Generator().manual_seed(index))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield random.random()


class RandomCrop:
    def __call__(self, value: Any) -> Any:
        return value


def flip(value: Any) -> Any:
    return value if coin() else -value


def coin() -> bool:
    return random.random() < 0.5


def collate(samples: list[Any]) -> Any:
    return torch.stack(samples) + torch.rand(1)


def seed_by_worker(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32 + worker)


def seed_by_rank(worker: int) -> None:
    np.random.seed(int(os.environ["RANK"]) * 100 + worker)


def seed_with(worker: int, *, rank: int) -> None:
    np.random.seed(100 * rank + worker)


def identity(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        pytest.param(Noisy(), {}, True, id="numpy-in-a-method"),
        pytest.param(Plain(), {}, False, id="only-its-constructor"),
        pytest.param(TensorDataset(torch.zeros(4)), {}, False, id="tensors"),
        pytest.param(Plain(flip), {}, True, id="a-transform-that-calls-a-function"),
        pytest.param(Plain(identity), {}, False, id="a-transform-that-does-not-draw"),
        pytest.param(Plain(RandomCrop()), {}, True, id="a-transform-by-its-name"),
        pytest.param(Subset(Noisy(), [0, 1]), {}, True, id="inside-another"),
        pytest.param(Stream(), {}, True, id="iterable"),
        pytest.param(Numbered(), {}, False, id="seeded-by-the-index"),
        pytest.param(Plain(), {"collate_fn": collate}, True, id="when-a-batch-is-made"),
        pytest.param(Noisy(), {"worker_init_fn": seed_by_worker}, True, id="workers-seeded-without-the-rank"),
        pytest.param(Noisy(), {"worker_init_fn": seed_by_rank}, False, id="workers-seeded-by-the-rank"),
        pytest.param(
            Noisy(), {"worker_init_fn": functools.partial(seed_with, rank=1)}, False, id="which-a-function-is-given"
        ),
        pytest.param(Noisy(), {"num_workers": 0}, False, id="no-workers"),
    ],
)  # fmt: skip
def test_datasets(dataset: Dataset[Any], options: dict[str, Any], expected: bool) -> None:
    assert draws_in_workers(DataLoader(dataset, **{"num_workers": 2, **options})) is expected


def test_a_dataset_that_cannot_be_looked_at() -> None:
    class Odd(Plain):
        __slots__ = ()

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no")

    assert not draws_in_workers(DataLoader(Odd.__new__(Odd), sampler=[0], num_workers=1))
