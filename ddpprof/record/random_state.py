"""The state of torch's random-number generators, as a number that is equal on ranks that draw the same numbers."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable

import torch

_DIGEST_BYTES = 7
"""size of a number that every JSON reader holds in 64 bits"""


def random_state(accelerators: Iterable[torch.device]) -> int | None:
    """Return a digest of the state of the CPU's generator and those of accelerators; ``None`` if one cannot be read.

    Nothing is drawn and no operator of torch runs. An accelerator keeps its state on the host, so nothing waits for it.
    """
    digest = hashlib.blake2b(_bytes_of(torch.default_generator.get_state()), digest_size=_DIGEST_BYTES)
    try:
        for device in accelerators:
            digest.update(_bytes_of(torch.get_device_module(device).get_rng_state(device)))
    except Exception:  # each kind of accelerator has its own code for this
        return None
    return int.from_bytes(digest.digest())


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())
