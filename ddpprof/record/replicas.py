"""Do all ranks have the same model? A few values of its parameters are read before and after the recorded steps.

DDP makes parameters equal when it wraps a model, and keeps them equal as long as only averaged gradients change them.
Values are read between steps, twice per job, and on CPU only, so nothing ever waits for an accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch

from ddpprof.model import Replica

_MAX_PARAMETERS = 16
_MAX_VALUES = 8
"""most values of each parameter"""


class ReplicaNotes:
    """Some values of one rank's copy of the model."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = some_to_read([one for one in parameters if one.device.type == "cpu"])
        self._before: tuple[int, tuple[float, ...]] | None = None
        self._after: tuple[int, tuple[float, ...]] | None = None

    def recording_begins(self, step: int) -> None:
        """Read the values before step number `step`, which is the same on all ranks."""
        self._before = step, self._values()

    def recording_ends(self, step: int) -> None:
        self._after = step, self._values()

    def _values(self) -> tuple[float, ...]:
        return values_of(self._parameters)

    def compared(self, module: int, num_unreduced_passes: int) -> Replica | None:
        """Return the values of the module with that index; ``None`` if there is nothing to compare."""
        if self._before is None or self._after is None or not self._parameters:
            return None
        return replica(module, self._before, self._after, self._parameters, num_unreduced_passes)


def replica(
    module: int,
    before: tuple[int, tuple[float, ...]],
    after: tuple[int, tuple[float, ...]],
    parameters: Sequence[torch.Tensor],
    num_unreduced_passes: int = 0,
) -> Replica | None:
    """Return the values before and after steps, each with the number of its step; ``None`` unless all are finite."""
    if not all(map(isfinite, before[1] + after[1])):
        return None
    resolution = max(torch.finfo(parameter.dtype).eps for parameter in parameters)
    return Replica(module, (before[0], after[0]), before[1], after[1], resolution, num_unreduced_passes)


def some_to_read(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return some of the parameters, evenly chosen from those that are ordinary tensors."""
    read = [one for one in parameters if _can_be_read(one)]
    return read[:: -(-len(read) // _MAX_PARAMETERS) or 1]


def values_of(parameters: Sequence[torch.Tensor]) -> tuple[float, ...]:
    """Return some values of each parameter."""
    return tuple(value for parameter in parameters for value in _some(parameter))


def _can_be_read(parameter: torch.Tensor) -> bool:
    """Return whether it is an ordinary tensor, unlike a sharded one, which only looks like a tensor."""
    plain = type(parameter) in (torch.Tensor, torch.nn.Parameter) and type(parameter.data) is torch.Tensor
    is_dense = parameter.layout == torch.strided and parameter.is_contiguous()
    return plain and is_dense and parameter.is_floating_point() and not parameter.is_meta


def _some(parameter: torch.Tensor) -> list[float]:
    flat = parameter.detach().view(-1)
    return flat[:: -(-len(flat) // _MAX_VALUES) or 1].tolist()
