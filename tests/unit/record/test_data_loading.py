"""Which loader feeds the training, with which samples and random numbers."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from ddpprof.record.data_loading import Feeding, digests, draws_in_workers, lengths, random_states, sizes_of

DATA = TensorDataset(torch.arange(12.0).reshape(12, 1))


class Loop:
    """A training loop that is watched as `Session` watches it."""

    def __init__(self) -> None:
        self.feeding = Feeding()
        self.feeding.recording = True

    def batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        self.feeding.loader_begins(loader)
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                self.feeding.batch_comes(iterator, None, 0)
                return
            self.feeding.batch_comes(iterator, batch, 1)
            yield batch

    def forward(self, *inputs: Any, grad: bool = True) -> None:
        with torch.set_grad_enabled(grad):
            self.feeding.pre_forward_begins(None, tuple(inputs), {})

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


ROWS = torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(ROWS, id="tensor"),
        pytest.param((ROWS, ["a", "b"]), id="tuple-with-words"),
        pytest.param({"x": [ROWS]}, id="nested"),
        pytest.param(ROWS.t().contiguous().t(), id="transposed"),
        pytest.param(ROWS.to(torch.bfloat16), id="bfloat16"),
        pytest.param(ROWS.numpy(), id="array"),
    ],
)
def test_a_number_for_each_sample(batch: Any) -> None:
    found = digests(batch)
    assert found is not None
    assert len(set(found)) == len(found) == 4
    assert digests(batch) == found


def test_the_layout_in_memory_does_not_count() -> None:
    assert digests(ROWS) == digests(ROWS.t().contiguous().t()) == digests(ROWS.flip(0).flip(0))
    assert digests(ROWS.flip(0)) == list(reversed(digests(ROWS) or []))


def test_every_tensor_of_a_sample_counts() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    with_labels = digests((ROWS, labels))
    changed = digests((ROWS, torch.tensor([0, 0, 1, 0])))
    assert with_labels is not None
    assert changed is not None
    assert [a == b for a, b in zip(with_labels, changed, strict=True)] == [True, True, True, False]


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([], id="empty"),
        pytest.param(["a", 3], id="no-tensor"),
        pytest.param(torch.tensor(3.0), id="one-number"),
        pytest.param(ROWS.clone().requires_grad_(), id="with-gradient"),
        pytest.param(ROWS.to_sparse(), id="sparse"),
        pytest.param(ROWS.to("meta"), id="on-a-device"),
        pytest.param((ROWS, ROWS.to("meta")), id="partly-on-a-device"),
        pytest.param(np.array([{}, {}]), id="objects"),
    ],
)
def test_what_cannot_be_read(batch: Any) -> None:
    assert digests(batch) is None


def test_tensors_of_different_lengths_are_one_sample() -> None:
    assert len(digests([torch.zeros(3, 4), torch.zeros(5, 4)]) or []) == 1


def test_of_a_large_batch_a_part_is_read() -> None:
    large = torch.zeros(64, 3, 100, 100)
    found = digests(large)
    assert found is not None
    assert len(found) == 32
    large[0] = 1
    changed = digests(large)
    assert changed is not None
    assert [i for i in range(32) if changed[i] != found[i]] == [0]


def test_the_profiler_sees_nothing() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        digests((ROWS, ROWS))
        sizes_of((ROWS, ROWS))
    assert [event.name for event in seen.events()] == []


def test_sizes() -> None:
    assert sizes_of({"x": ROWS, "y": np.zeros(7)}) == {24, 7}


def padded_left(dtype: torch.dtype) -> torch.Tensor:
    """Three rows of ten positions, of which the last two, six and five are used."""
    mask = torch.zeros(3, 10, dtype=dtype)
    for row, used in enumerate((2, 6, 5)):
        mask[row, 10 - used :] = 1
    return mask


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32, torch.bfloat16])
def test_the_longest_sequence_of_a_batch(dtype: torch.dtype) -> None:
    mask = padded_left(dtype)
    assert lengths({"input_ids": ROWS, "attention_mask": mask}) == (10, 6)
    assert lengths({"attention_mask": mask.t().contiguous().t()}) == (10, 6)
    assert lengths({"attention_mask": mask.flip(1)}) == (10, 6)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param({"input_ids": ROWS}, id="without-a-mask"),
        pytest.param(padded_left(torch.int64), id="not-a-mapping"),
        pytest.param({"attention_mask": padded_left(torch.int64)[0]}, id="of-one-sequence"),
        pytest.param({"attention_mask": padded_left(torch.int64).to("meta")}, id="on-a-device"),
        pytest.param({"attention_mask": torch.ones(1001, 1000, dtype=torch.bool)}, id="too-large-to-read"),
        pytest.param({"attention_mask": torch.ones(3, 0)}, id="empty"),
        pytest.param({"attention_mask": [[1, 0]]}, id="a-list"),
    ],
)
def test_unknown_lengths(batch: Any) -> None:
    assert lengths(batch) == (None, None)


def test_lengths_are_not_seen_by_the_profiler() -> None:
    batch = {"attention_mask": padded_left(torch.int64)}
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        assert lengths(batch) == (10, 6)
    assert [event.name for event in seen.events()] == []


# ruff: noqa: NPY002 (the generators that datasets draw from)


def test_they_are_equal_as_long_as_the_same_numbers_are_drawn() -> None:
    torch.manual_seed(3)
    seeded = random_states(())
    assert random_states(()) == seeded
    torch.rand(1)
    drawn = random_states(())
    assert drawn != seeded
    torch.manual_seed(3)
    assert random_states(()) == seeded
    torch.rand(1)
    assert random_states(()) == drawn
    torch.manual_seed(4)
    assert random_states(()) != seeded


def test_they_draw_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    random_states(())
    assert torch.equal(torch.rand(4), expected)


def test_an_accelerators_own(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, state = [torch.device("cuda", 0), torch.device("cuda", 1)], torch.zeros(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda which: state if which.index else torch.zeros(16))
    before = random_states(devices)
    assert before.keys() == {"cpu", "cuda", "numpy", "random"}
    state[3] = 1
    after = random_states(devices)
    assert (after["cpu"] == before["cpu"], after["cuda"] == before["cuda"]) == (True, False)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        pytest.param("numpy", np.random.rand, id="numpy"),
        pytest.param("random", random.random, id="python"),
    ],
)
def test_those_of_libraries(name: str, draw: Callable[[], Any]) -> None:
    np.random.seed(3)
    random.seed(3)
    before, first = random_states(()), draw()
    after = random_states(())
    assert {one for one in before if before[one] != after[one]} == {name}
    np.random.seed(3)
    random.seed(3)
    assert random_states(()) == before
    assert draw() == first


def test_one_that_does_not_tell_is_left_out() -> None:
    assert random_states([torch.device("mps")]).keys() == {"cpu", "numpy", "random"}


def test_the_profiler_does_not_see_it() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        random_states(())
    assert [event.name for event in seen.events()] == []


# ruff: noqa: NPY002 (the generators that datasets draw from)


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
