"""The states of random-number generators, as numbers that are equal on ranks that draw the same numbers.

They are torch's, and those of NumPy and of Python's `random`, which data sets often draw from.
"""

from __future__ import annotations

import ctypes
import random
from array import array
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch

from ddpprof.record.samples import digest_of


def random_states(accelerators: Sequence[torch.device]) -> dict[str, int]:
    """Return a digest of torch's generator on CPU, of those on each type of accelerator, of NumPy's and of Python's.

    The names are those that torch has for types of devices, ``"numpy"`` and ``"random"``.

    An accelerator whose generator cannot be read is left out. Nothing is drawn and no operator of torch runs. An
    accelerator keeps the state on the host, so nothing waits for it.
    """
    states = {
        "cpu": digest_of([_bytes_of(torch.default_generator.get_state())]),
        "random": digest_of([array("Q", random.getstate()[1]).tobytes()]),
    }
    with suppress(Exception):  # the script may have put another generator there
        numpys = np.random.get_state(legacy=False)  # noqa: NPY002 (it is what datasets draw from)
        states["numpy"] = digest_of([numpys["state"]["key"].tobytes(), bytes(str(numpys["state"]["pos"]), "ascii")])
    for kind in dict.fromkeys(device.type for device in accelerators):
        with suppress(Exception):  # each type has code of its own for this
            get_state = torch.get_device_module(kind).get_rng_state
            states[kind] = digest_of([_bytes_of(get_state(one)) for one in accelerators if one.type == kind])
    return states


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())
