"""Digests of a batch: numbers that are equal on two ranks exactly if its samples are.

Each sample, a row of the batch's tensors, gets a digest of some of its elements. Only data in the host's memory is
read, so nothing waits for an accelerator. No operator of torch runs, so the profiler sees nothing of it.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch

_MAX_ROWS = 32
_MAX_ELEMENTS = 256
"""most elements of a row, over all tensors, which makes at most 64 KiB per batch"""
_MAX_TENSORS = 8
_MAX_DEPTH = 3
_DIGEST_BYTES = 7
"""size of a number that fits into 64 bits with a sign"""


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
    """Return a number for each of the first samples; ``None`` if the batch cannot be read.

    A batch whose tensors have different numbers of rows counts as one sample.
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


def _array(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Return the same memory as an array; ``None`` if it is not plain host memory.

    ``Tensor.numpy`` would do, but it runs operators that the profiler of a profiled step sees.
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
    """Return which elements to read: at most `most` of each of the first rows, evenly spread."""
    sizes, every = list(shape[1:]), [1] * (len(shape) - 1)
    counts = sizes.copy()
    while np.prod(counts, dtype=np.int64) > most:
        longest = counts.index(max(counts))
        every[longest] += 1
        counts[longest] = -(-sizes[longest] // every[longest])
    return (slice(_MAX_ROWS), *(slice(None, None, step) for step in every))


def digest_of(parts: Sequence[bytes]) -> int:
    """Return a number that is equal for equal parts, and hardly ever for others."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest())
