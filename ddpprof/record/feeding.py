"""Which DataLoader feeds the training, and with which samples?

A batch feeds the training if a DDP forward with gradients follows it before the next batch of its loader. No such
forward follows the batches of an evaluation: their loader runs out, or forwards without gradients come first. A wrapper
that fetches one batch ahead only shifts this by one batch.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from ddpprof.model import Batch, Loader
from ddpprof.record.random_draws import draws_in_workers
from ddpprof.record.samples import digest_of, digests, sizes_of

_MAX_LOADERS = 32
_MAX_EPOCHS_KEPT = 16
_MAX_BATCHES_KEPT = 32
_BATCHES_AHEAD = 4
"""number of recent batches, one of which may be the input of a forward"""


@dataclass(eq=False)
class _Feed:
    """One DataLoader, for the lifetime of its sampler."""

    loader: Loader
    """description when the first pass over it began"""
    sampler_id: int
    drawn_by: weakref.ref[Any] | None
    epochs_set: list[int] | None = None
    set_epoch_called: bool = False
    num_iterations: int = 0
    num_batches: int = 0
    num_fed: int = 0
    num_passed_on: int = 0
    waited_ns: int = 0
    batches: list[Batch] = field(default_factory=list)
    has_run_out: bool = True
    """True if the last pass over it was completed, or there was none"""
    place: int = 0
    """position of the last batch in its pass"""
    worker_seeds: list[int] = field(default_factory=list)
    sizes: deque[frozenset[int]] = field(default_factory=lambda: deque(maxlen=_BATCHES_AHEAD))

    def described(self) -> Loader:
        return structs.replace(
            self.loader,
            num_iterations=self.num_iterations,
            epochs_set=None if self.epochs_set is None else tuple(self.epochs_set),
            set_epoch_called=self.set_epoch_called,
            num_batches=self.num_batches,
            num_fed=self.num_fed,
            num_passed_on=self.num_passed_on,
            waited_ns=self.waited_ns,
            batches=tuple(self.batches),
            worker_seeds=tuple(self.worker_seeds),
        )


class Feeding:
    """The loaders of one process."""

    def __init__(self) -> None:
        self.data_ns = 0
        """time that the training thread has waited for batches in this step"""
        self.began_pass = False
        """whether a pass over a loader has begun; whoever asks sets it back"""
        self._feeds: list[_Feed] = []
        self._by_index_sampler: dict[int, _Feed] = {}
        self._waiting: dict[_Feed, bool] = {}
        """loaders whose last batch is not yet followed by a forward with gradients → whether by one without"""
        self._epochs_set_on: set[int] = set()

    def loader_begins(self, loader: DataLoader[Any]) -> None:
        """Note that a pass over `loader` begins."""
        self.began_pass = True
        feed = self._feed(loader)
        if feed is None:
            return
        feed.place = 0
        feed.num_iterations += 1
        feed.set_epoch_called |= feed.sampler_id in self._epochs_set_on
        epochs = feed.epochs_set
        if epochs is not None and len(epochs) < _MAX_EPOCHS_KEPT:
            if not feed.has_run_out:
                epochs.pop()  # only looking at the first batches is not an epoch
            epochs.append(int(drawing_sampler(loader).epoch))
        feed.has_run_out = False

    def _feed(self, loader: DataLoader[Any]) -> _Feed | None:
        drawn_by = loader._index_sampler
        feed = self._by_index_sampler.get(id(drawn_by))
        if feed is not None and (feed.drawn_by is None or feed.drawn_by() is drawn_by):
            return feed
        if len(self._feeds) == _MAX_LOADERS:
            return None
        reference = None
        with suppress(TypeError):  # an object with slots
            reference = weakref.ref(drawn_by)
        described = describe_loader(loader)
        epochs = None if described.epochs_set is None else list(described.epochs_set)
        feed = _Feed(described, id(drawing_sampler(loader)), reference, epochs)
        self._feeds.append(feed)
        self._by_index_sampler[id(drawn_by)] = feed
        return feed

    def fetches(self, iterator: Any, batch: Any, waited_ns: int, recording: bool) -> None:
        """Note that `batch` was fetched, or, if ``None``, that the iterator has run out."""
        self.data_ns += waited_ns
        feed = self._by_index_sampler.get(id(iterator._index_sampler))
        if feed is None:
            return
        self._waiting = {
            one: evaluated for one, evaluated in self._waiting.items() if not evaluated and one is not feed
        }
        if recording:
            feed.waited_ns += waited_ns
        if batch is None:
            feed.has_run_out = True
            return
        self._waiting[feed] = False
        if feed.place == 0 and feed.loader.num_workers and len(feed.worker_seeds) < _MAX_EPOCHS_KEPT:
            feed.worker_seeds.append(digest_of([str(getattr(iterator, "_base_seed", id(iterator))).encode()]))
        feed.num_batches += 1
        feed.place += 1
        if recording:
            with suppress(Exception):  # a batch may be any object, and an unreadable one is no evidence
                self._keep(feed, batch)

    def runs_out(self, iterator: Any) -> None:
        """Note that a pass over the loader is complete."""
        feed = self._by_index_sampler.get(id(iterator._index_sampler))
        if feed is not None:
            feed.has_run_out = True

    def _keep(self, feed: _Feed, batch: Any) -> None:
        kept = feed.batches
        if len(kept) < _MAX_BATCHES_KEPT:
            feed.sizes.append(sizes_of(batch))
            found = digests(batch)
            if found is not None:
                kept.append(Batch(feed.num_iterations, feed.place, tuple(found)))

    def forward_begins(self, inputs: Any, has_gradients: bool, recording: bool) -> None:
        """Note that a DDP module is called with `inputs`."""
        if not has_gradients:
            self._waiting = dict.fromkeys(self._waiting, True)
            return
        for feed in self._waiting:
            feed.num_fed += 1
        self._waiting.clear()
        if recording:
            with suppress(Exception):  # as above
                self._pass_on(inputs)

    def _pass_on(self, inputs: Any) -> None:
        """Note whose batches the inputs may be, by their size, since they may be on another device by now."""
        largest = max(sizes_of(inputs), default=0)
        for feed in self._feeds:
            if any(largest in sizes for sizes in feed.sizes):
                feed.num_passed_on += 1

    def end_step(self) -> None:
        self.data_ns = 0

    def sets_epoch(self, sampler: Any) -> None:
        self._epochs_set_on.add(id(sampler))
        for feed in self._feeds:
            feed.set_epoch_called |= feed.sampler_id == id(sampler)

    def facts(self) -> dict[str, Any]:
        """Return fields of the `Record`."""
        return {"loaders": tuple(feed.described() for feed in self._feeds)}


def drawing_sampler(loader: DataLoader[Any]) -> Any:
    """Return what draws the indices; `loader.sampler` is only a default if the script passed a batch sampler."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def describe_loader(loader: DataLoader[Any]) -> Loader:
    """Describe a loader that nothing has been fetched from."""
    sampler = drawing_sampler(loader)
    try:
        dataset_size = len(loader.dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        dataset_size = None
    kind = type(sampler)
    orders_by_epoch = isinstance(sampler, DistributedSampler) and kind.__iter__ is DistributedSampler.__iter__
    return Loader(
        sampler=kind.__name__,
        dataset_size=dataset_size,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        persistent_workers=loader.persistent_workers,
        num_iterations=0,
        epochs_set=() if orders_by_epoch else None,
        shuffles=bool(getattr(sampler, "shuffle", kind.__name__ == "RandomSampler")),
        batches_per_pass=_batches_per_pass(loader),
        draws_in_workers=draws_in_workers(loader),
        has_generator=loader.generator is not None,
    )


def _batches_per_pass(loader: DataLoader[Any]) -> int | None:
    """Return the loader's length, unless asking changes it: torch warns if an `IterableDataset` yields more then."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except Exception:  # a batch sampler of the user may have no length, or compute it
        return None
