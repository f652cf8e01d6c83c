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


class RandomDataset(Plain):
    """Lightning's template, whose name only tells how its values were made."""


class Normals(Plain):
    def __init__(self, cfg: Any = None) -> None:
        super().__init__()
        self.normal, self.cfg = self.values, cfg

    def __getitem__(self, index: int) -> Any:
        return self.normal[index] if self.cfg.shuffle and self.cfg.choice else self.normal[index] * self.cfg.beta


class OwnGenerator(Plain):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(seed)

    def __getitem__(self, index: int) -> Any:
        return self.values[index] + torch.rand(2, generator=self.own)


class GivenGenerator(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(2, generator=of_rank(index))


def of_rank(index: int) -> Any:
    return index


class OwnNumpy(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.RandomState(3)

    def __getitem__(self, index: int) -> Any:
        return self.draws.randn() + np.random.randn()


class InPlace(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.empty(2).uniform_()


class Static(Plain):
    @staticmethod
    def noise() -> Any:
        return random.gauss(0, 1)

    def __getitem__(self, index: int) -> Any:
        return [self.noise() for _ in range(2)]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield random.random()


class RandomCrop:
    def __call__(self, value: Any) -> Any:
        return value


class RandomCropOfLibrary(RandomCrop):
    __module__ = "torchvision.transforms"


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


def seed_from_system(_worker: int) -> None:
    np.random.seed()
    random.seed()


def seed_from_bytes(worker: int) -> None:
    np.random.seed((torch.initial_seed() + int.from_bytes(os.urandom(3), "big") + worker) % 2**32)


def seed_from_info(_worker: int) -> None:
    np.random.seed(torch.utils.data.get_worker_info().seed % 2**32)  # type: ignore[union-attr]


def few_threads(_worker: int) -> None:
    torch.set_num_threads(1)


def seeding_with(rank: int) -> Callable[[int], None]:
    def init(worker: int) -> None:
        np.random.seed((torch.initial_seed() + rank) % 2**32)

    return init


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
        pytest.param(Plain(RandomCropOfLibrary()), {}, True, id="a-transform-of-a-library-by-its-name"),
        pytest.param(Plain(RandomCrop()), {}, False, id="a-transform-that-only-has-such-a-name"),
        pytest.param(RandomDataset(), {}, False, id="a-dataset-that-only-has-such-a-name"),
        pytest.param(Normals(), {}, False, id="attributes-with-names-of-functions-that-draw"),
        pytest.param(OwnGenerator(1), {}, False, id="its-own-generator"),
        pytest.param(GivenGenerator(), {}, False, id="a-generator-that-it-is-given"),
        pytest.param(OwnNumpy(), {}, False, id="its-own-generator-of-numpy"),
        pytest.param(InPlace(), {}, True, id="in-place"),
        pytest.param(Static(), {}, True, id="a-static-method"),
        pytest.param(Subset(Noisy(), [0, 1]), {}, True, id="inside-another"),
        pytest.param(Stream(), {}, True, id="iterable"),
        pytest.param(Numbered(), {}, False, id="seeded-by-the-index"),
        pytest.param(Plain(), {"collate_fn": collate}, True, id="when-a-batch-is-made"),
        pytest.param(Noisy(), {"worker_init_fn": seed_by_worker}, True, id="workers-seeded-without-the-rank"),
        pytest.param(Noisy(), {"worker_init_fn": seed_by_rank}, False, id="workers-seeded-by-the-rank"),
        pytest.param(
            Noisy(), {"worker_init_fn": functools.partial(seed_with, rank=1)}, False, id="which-a-function-is-given"
        ),
        pytest.param(Noisy(), {"worker_init_fn": seeding_with(1)}, False, id="which-a-function-encloses"),
        pytest.param(Noisy(), {"worker_init_fn": seed_from_system}, False, id="workers-seeded-by-the-system"),
        pytest.param(Noisy(), {"worker_init_fn": seed_from_bytes}, False, id="partly-by-the-system"),
        pytest.param(Noisy(), {"worker_init_fn": seed_from_info}, True, id="workers-seeded-by-the-loader"),
        pytest.param(Noisy(), {"worker_init_fn": few_threads}, True, id="workers-that-keep-their-seeds"),
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
