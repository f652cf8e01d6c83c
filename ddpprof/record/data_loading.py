"""Record which DataLoaders provide training data, their samples, and the states of the random number generators.

A batch counts as training data if a DDP forward pass with gradients runs before the loader yields its next batch. After
an evaluation batch, either the loader is exhausted or a forward pass without gradients runs first. If a wrapper
prefetches one batch, the result of this test applies to the following batch.
"""

from __future__ import annotations

import ctypes
import dis
import hashlib
import random
import re
import weakref
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from ddpprof.model import Batch, Loader
from ddpprof.record.events import Listener

_MAX_ROWS = 32
_MAX_ELEMENTS = 256
"""maximum number of elements read per sample, over all of its tensors; this limits a batch to 64 KiB"""
_MAX_MASK = 1_000_000
"""an attention mask is read if it has at most this many elements; reading it takes less than 1 ms"""
_MAX_TENSORS = 8
_MAX_DEPTH = 3
_DIGEST_BYTES = 7
"""size of a digest in bytes; a digest of this size fits into a signed 64-bit integer"""


def tensors_in(batch: Any, depth: int = _MAX_DEPTH) -> Iterator[Any]:
    """Yield the batch's tensors and arrays, in order."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        yield batch
    elif depth and isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value, depth - 1)
    elif depth and isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for value in batch[:_MAX_TENSORS]:
            yield from tensors_in(value, depth - 1)


def sizes_of(batch: Any) -> frozenset[int]:
    """Return the number of elements of each tensor."""
    tensors = islice(tensors_in(batch), _MAX_TENSORS)
    return frozenset(one.numel() if isinstance(one, torch.Tensor) else one.size for one in tensors)


def digests(batch: Any) -> list[int] | None:
    """Return a digest for each of the first samples; ``None`` if the batch cannot be read.

    If the tensors of a batch have different numbers of rows, the batch counts as one sample.
    """
    arrays = [_array(one) for one in islice(tensors_in(batch), _MAX_TENSORS)]
    known = [array for array in arrays if array is not None and array.ndim > 0]
    if not known or len(known) < len(arrays) or any(array.dtype.hasobject for array in known):
        return None
    if len({len(array) for array in known}) > 1:
        known = [array[np.newaxis] for array in known]
    most = _MAX_ELEMENTS // len(known)
    sampled = [np.ascontiguousarray(array[_sampled(array.shape, most)]) for array in known]
    return [digest_of([array[row].tobytes() for array in sampled]) for row in range(len(sampled[0]))]


def lengths(batch: Any) -> tuple[int, int] | tuple[None, None]:
    """Return `Batch.width` and `Batch.longest`."""
    mask = _array(batch.get("attention_mask")) if isinstance(batch, Mapping) else None
    if mask is None or mask.ndim != 2 or not 0 < mask.size <= _MAX_MASK:
        return None, None
    return mask.shape[1], int(np.count_nonzero(mask.view(f"u{mask.itemsize}").any(axis=0)))


def _array(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Return an array that shares the tensor's memory; ``None`` if the tensor is not in ordinary host memory.

    ``Tensor.numpy`` is not used, because it runs operators that the profiler would record.
    """
    if type(tensor) is not torch.Tensor:
        return tensor if isinstance(tensor, np.ndarray) else None
    if tensor.device.type != "cpu" or tensor.requires_grad or tensor.layout != torch.strided:
        return None
    shape, strides, size = tuple(tensor.shape), tensor.stride(), tensor.element_size()
    num_elements = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1 if tensor.numel() else 0
    memory = (ctypes.c_char * (num_elements * size)).from_address(tensor.data_ptr())
    return np.ndarray(
        shape, np.dtype((np.void, size)), memoryview(memory), strides=[stride * size for stride in strides]
    )


@lru_cache(maxsize=64)
def _sampled(shape: tuple[int, ...], most: int) -> tuple[slice, ...]:
    """Return slices that select the first rows of an array, and at most `most` evenly spaced elements of each row."""
    sizes, every = list(shape[1:]), [1] * (len(shape) - 1)
    counts = sizes.copy()
    while np.prod(counts, dtype=np.int64) > most:
        longest = counts.index(max(counts))
        every[longest] += 1
        counts[longest] = -(-sizes[longest] // every[longest])
    return (slice(_MAX_ROWS), *(slice(None, None, step) for step in every))


def digest_of(parts: Sequence[bytes]) -> int:
    """Return a digest of the concatenated parts as an integer."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest())


def random_states(accelerators: Sequence[torch.device]) -> dict[str, int]:
    """Return a digest of the state of each random number generator: torch's per device type, NumPy's and Python's.

    Keys are torch's device types, ``"numpy"`` and ``"random"``. An accelerator is left out if its generator cannot be
    read. No random number is drawn, and no torch operator runs. The generator state of an accelerator is kept on the
    host, so reading it does not wait for the device.
    """
    states = {
        "cpu": digest_of([_bytes_of(torch.default_generator.get_state())]),
        "random": digest_of([array("Q", random.getstate()[1]).tobytes()]),
    }
    with suppress(Exception):  # the script may have replaced the generator
        numpys = np.random.get_state(legacy=False)  # noqa: NPY002 (datasets use this generator)
        states["numpy"] = digest_of([numpys["state"]["key"].tobytes(), bytes(str(numpys["state"]["pos"]), "ascii")])
    for kind in dict.fromkeys(device.type for device in accelerators):
        with suppress(Exception):  # each device type has its own implementation
            get_state = torch.get_device_module(kind).get_rng_state
            states[kind] = digest_of([_bytes_of(get_state(one)) for one in accelerators if one.type == kind])
    return states


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


_OF_TORCH = (
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "bernoulli",
    "multinomial", "poisson",
)  # fmt: skip
_NOT_DRAWING = {"seed", "getstate", "setstate", "get_state", "set_state"}
_IN_PLACE = re.compile(r"(?:uniform|normal|log_normal|bernoulli|random|exponential|cauchy|geometric)_")
"""pattern for the names of in-place methods that fill a tensor with random numbers"""
_OWN_GENERATOR = re.compile(r"generator|manual_seed|seed|default_rng|RandomState|Random|Generator|fork_rng")
"""pattern for names and keywords which indicate that the dataset seeds a generator itself, for example from a sample's
index
"""
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DRAWING_CLASS = re.compile(r"^Random|Jitter|Augment|Erasing|MixUp|CutMix")
"""pattern for class names of library transforms that use random numbers; their code is too complex to analyze"""
_LIBRARIES = ("torchvision", "torchaudio", "kornia")
_KEEPS_SEEDS = {
    "torch", "initial_seed", "utils", "data", "get_worker_info", "seed", "np", "numpy", "random", "manual_seed", "int",
    "set_num_threads",
}  # fmt: skip
"""if a ``worker_init_fn`` uses only these names, it derives all seeds from the loader's seeds"""
_SEEDS_OF_LOADER = {"initial_seed", "get_worker_info"}
_SEEDING = {"seed", "manual_seed"}
_SAMPLING_METHODS = ("__getitem__", "__getitems__", "__iter__", "__call__", "forward")
_MOST_OBJECTS = 200
_MOST_ITEMS = 16
_MOST_DEPTH = 4


def draws_in_workers(loader: DataLoader[Any]) -> bool:
    """Return True if the samples depend on the seeds that the loader gives to its workers."""
    if not loader.num_workers:
        return False
    try:
        if loader.worker_init_fn is not None and not _keeps_seeds(loader.worker_init_fn):
            return False
        parts = (*_parts_of(loader.dataset), *_parts_of(loader.collate_fn))
        return any(_is_random_transform(one) or _draws(one) for one in parts)
    except Exception:
        return False


def _keeps_seeds(init: Any) -> bool:
    """Return True if it is certain that a ``worker_init_fn`` uses only the seeds given by the loader."""
    if not isinstance(init, FunctionType) or init.__closure__ or init.__defaults__ or init.__kwdefaults__:
        return False
    names = set(init.__code__.co_names)
    return names <= _KEEPS_SEEDS and not (names & _SEEDING and names.isdisjoint(_SEEDS_OF_LOADER))


def _parts_of(root: Any) -> Iterator[Any]:
    """Yield `root` and, recursively, the objects in its attributes, if they may transform samples."""
    waiting, seen = [(root, _MOST_DEPTH)], set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        part, depth = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, list | tuple):
            waiting += [(one, depth) for one in part[:_MOST_ITEMS]]
            continue
        yield part
        attributes = getattr(part, "__dict__", None)
        if depth and isinstance(attributes, dict) and not isinstance(part, type):
            waiting += [(one, depth - 1) for one in attributes.values() if _may_transform(one)]


def _may_transform(value: Any) -> bool:
    return callable(value) or isinstance(value, list | tuple) or hasattr(type(value), "__getitem__")


def _is_random_transform(part: Any) -> bool:
    kind = type(part)
    is_of_library = kind.__module__.partition(".")[0] in _LIBRARIES
    return (
        is_of_library
        and callable(part)
        and not isinstance(part, Dataset)
        and bool(_DRAWING_CLASS.search(kind.__name__))
    )


def _draws(part: Any) -> bool:
    """Return True if a function or an object's methods use the global generators of torch, NumPy or Python."""
    attributes = getattr(part, "__dict__", None)
    if isinstance(attributes, dict) and any(isinstance(one, _GENERATORS) for one in attributes.values()):
        return False
    code = list(_code_of(part))
    if any(_OWN_GENERATOR.fullmatch(word) for one in code for word in one.words):
        return False
    drawing = _drawing_functions()
    return any(id(one) in drawing for each in code for one in each.reached) or any(
        _IN_PLACE.fullmatch(name) for one in code for name in one.words
    )


def _drawing_functions() -> set[int]:
    """Return the IDs of functions that use one of the random number generators that loaders seed in their workers."""
    of_modules = [
        one
        for module, owner in ((random, random.Random), (np.random, np.random.RandomState))
        for name, one in vars(module).items()
        if isinstance(getattr(one, "__self__", None), owner) and name not in _NOT_DRAWING
    ]
    return {id(one) for one in (*of_modules, *(getattr(torch, name) for name in _OF_TORCH))}


@dataclass(slots=True)
class _Code:
    """The names and objects that the code of a function refers to."""

    words: set[str]
    """names of globals and attributes that the code uses, and keyword names in its calls"""
    reached: list[Any]
    """objects that the code accesses through globals or through the class of ``self``"""


def _code_of(part: Any) -> Iterator[_Code]:
    """Yield the code of a function, or of an object's methods that create samples, and of the functions they call."""
    function = getattr(part, "func", part)  # of `functools.partial`
    plain, seen = getattr(function, "__func__", function), set[CodeType]()
    if isinstance(plain, FunctionType):
        yield from _with_called(plain, None, seen)
        return
    for name in _SAMPLING_METHODS:
        method = getattr(type(function), name, None)
        if isinstance(method, FunctionType):
            yield from _with_called(method, type(function), seen)


def _with_called(function: FunctionType, owner: type | None, seen: set[CodeType]) -> Iterator[_Code]:
    """Yield the code of a function, and the code of functions of the same module or class that it calls."""
    waiting = [function.__code__]
    while waiting and len(seen) < _MOST_OBJECTS:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        keywords = {word for one in code.co_consts if isinstance(one, tuple) for word in one if isinstance(word, str)}
        reached = list(_reached(code, function.__globals__, owner))
        yield _Code({*code.co_names, *keywords}, reached)
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
        waiting += [
            one.__code__ for one in reached if isinstance(one, FunctionType) and one.__module__ == function.__module__
        ]


def _reached(code: CodeType, names: dict[str, Any], owner: type | None) -> Iterator[Any]:
    """Yield the objects that code refers to by dotted names, such as ``np.random.rand`` or ``self.noise``."""
    value: Any = None
    for instruction in dis.get_instructions(code):
        kind, word = instruction.opname, instruction.argval
        if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = names.get(word)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            value = _attribute(value, word)
        elif "LOAD_FAST" in kind or kind == "LOAD_DEREF":  # some instructions also store, or load two
            value = owner if (word[-1] if isinstance(word, tuple) else word) == "self" else None
        elif kind not in ("PUSH_NULL", "CACHE"):
            value = None
        if value is not None:
            yield value


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute of a module or class.

    For any other object, return ``None``, because reading its attributes might run code.
    """
    if isinstance(value, ModuleType):
        return vars(value).get(name)
    return getattr(value, name, None) if isinstance(value, type) else None


_MAX_LOADERS = 32
_MAX_EPOCHS_KEPT = 16
_MAX_BATCHES_KEPT = 32
_BATCHES_AHEAD = 4
"""number of recent batches with which the input of a forward pass is compared, because loaders may fetch ahead"""


@dataclass(eq=False)
class _Feed:
    """State of one DataLoader. It is valid as long as the loader's sampler exists."""

    loader: Loader
    """description of the loader at the time at which its first pass began"""
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
    """True if the loader had no more batches in its last pass, or if no pass has begun"""
    place: int = 0
    """position of the most recent batch in its pass"""
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


class Feeding(Listener):
    """Records how the DataLoaders of one process provide training data."""

    def __init__(self) -> None:
        self.recording = False
        """whether the parts of the current step are recorded"""
        self.data_ns = 0
        self.input_numel = 0
        """`data_ns` is the time that the training thread has waited for batches in this step; `input_numel` is the size
        of the step's inputs
        """
        self.began_pass = False
        """whether a pass over a loader has begun since this field was last reset; the code that reads the field resets
        it
        """
        self._feeds: list[_Feed] = []
        self._by_index_sampler: dict[int, _Feed] = {}
        self._waiting: dict[_Feed, bool] = {}
        """loaders whose last batch has not been used in a forward pass with gradients → whether it was used in a
        forward pass without gradients
        """
        self._epochs_set_on: set[int] = set()

    def loader_begins(self, loader: DataLoader[Any]) -> None:
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
                epochs.pop()  # reading only the first batches is not an epoch
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

    def batch_comes(self, iterator: Any, batch: Any, waited_ns: int) -> None:
        self.data_ns += waited_ns
        feed = self._by_index_sampler.get(id(iterator._index_sampler))
        if feed is None:
            return
        self._waiting = {
            one: evaluated for one, evaluated in self._waiting.items() if not evaluated and one is not feed
        }
        if self.recording:
            feed.waited_ns += waited_ns
        if batch is None:
            feed.has_run_out = True
            return
        self._waiting[feed] = False
        if feed.place == 0 and feed.loader.num_workers and len(feed.worker_seeds) < _MAX_EPOCHS_KEPT:
            feed.worker_seeds.append(digest_of([str(getattr(iterator, "_base_seed", id(iterator))).encode()]))
        feed.num_batches += 1
        feed.place += 1
        if self.recording:
            with suppress(Exception):  # a batch may be any object; an unreadable one is ignored
                self._keep(feed, batch)

    def loader_runs_out(self, iterator: Any) -> None:
        feed = self._by_index_sampler.get(id(iterator._index_sampler))
        if feed is not None:
            feed.has_run_out = True

    def _keep(self, feed: _Feed, batch: Any) -> None:
        kept = feed.batches
        if len(kept) < _MAX_BATCHES_KEPT:
            feed.sizes.append(sizes_of(batch))
            found = digests(batch)
            if found is not None:
                kept.append(Batch(feed.num_iterations, feed.place, tuple(found), *lengths(batch)))

    def pre_forward_begins(self, ddp: object, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            self._waiting = dict.fromkeys(self._waiting, True)
            return
        for feed in self._waiting:
            feed.num_fed += 1
        self._waiting.clear()
        if self.recording:
            with suppress(Exception):  # a batch may be any object
                self._pass_on([*inputs, *kwargs.values()])

    def _pass_on(self, inputs: Any) -> None:
        """Record the size of the inputs, and from which loaders they may come.

        Only sizes are compared, because the inputs may already be on another device.
        """
        largest = max(sizes_of(inputs), default=0)
        self.input_numel += largest
        for feed in self._feeds:
            if any(largest in sizes for sizes in feed.sizes):
                feed.num_passed_on += 1

    def end_step(self) -> None:
        self.data_ns = self.input_numel = 0

    def epoch_is_set(self, sampler: Any) -> None:
        self._epochs_set_on.add(id(sampler))
        for feed in self._feeds:
            feed.set_epoch_called |= feed.sampler_id == id(sampler)

    def facts(self) -> dict[str, Any]:
        """Return what was recorded about the loaders, as fields of the `Record`."""
        return {"loaders": tuple(feed.described() for feed in self._feeds)}


def drawing_sampler(loader: DataLoader[Any]) -> Any:
    """Return the object that draws the indices.

    If the script passes a batch sampler, `loader.sampler` is a default that is not used.
    """
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def describe_loader(loader: DataLoader[Any]) -> Loader:
    """Return the description of a loader, before its first batch is fetched."""
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
    """Return the loader's length in batches; ``None`` if it is unknown.

    The length of an `IterableDataset` is not read, because torch would later warn if it yields more samples.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except Exception:  # a user's batch sampler may have no length, or fail to compute it
        return None
