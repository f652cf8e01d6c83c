"""The states of torch's random-number generators, as numbers that are equal on ranks that draw the same numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress

import torch

from ddpprof.record.samples import digest_of


def random_states(accelerators: Sequence[torch.device]) -> dict[str, int]:
    """Return a digest of the CPU's generator, and one of the generators of each type of accelerator, by torch's name.

    An accelerator whose generator cannot be read is left out. Nothing is drawn and no operator of torch runs. An
    accelerator keeps the state on the host, so nothing waits for it.
    """
    states = {"cpu": digest_of([_bytes_of(torch.default_generator.get_state())])}
    for kind in dict.fromkeys(device.type for device in accelerators):
        with suppress(Exception):  # each type has code of its own for this
            get_state = torch.get_device_module(kind).get_rng_state
            states[kind] = digest_of([_bytes_of(get_state(one)) for one in accelerators if one.type == kind])
    return states


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())
