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
        read = [one for one in parameters if _can_be_read(one)]
        self._parameters = read[:: -(-len(read) // _MAX_PARAMETERS) or 1]
        self._before: tuple[int, tuple[float, ...]] | None = None
        self._after: tuple[int, tuple[float, ...]] | None = None

    def recording_begins(self, step: int) -> None:
        """Read the values before step number `step`, which is the same on all ranks."""
        self._before = step, self._values()

    def recording_ends(self, step: int) -> None:
        self._after = step, self._values()

    def _values(self) -> tuple[float, ...]:
        return tuple(value for parameter in self._parameters for value in _some(parameter))

    def compared(self, module: int, num_unreduced_passes: int) -> Replica | None:
        """Return the values of the module with that index; ``None`` if there is nothing to compare."""
        if self._before is None or self._after is None or not self._parameters:
            return None
        if not all(map(isfinite, self._before[1] + self._after[1])):
            return None
        return Replica(
            module=module,
            steps=(self._before[0], self._after[0]),
            before=self._before[1],
            after=self._after[1],
            resolution=max(torch.finfo(parameter.dtype).eps for parameter in self._parameters),
            num_unreduced_passes=num_unreduced_passes,
        )


def _can_be_read(parameter: torch.nn.Parameter) -> bool:
    """Return whether it is an ordinary tensor on CPU, unlike a sharded one, which only looks like a tensor."""
    plain = type(parameter.data) is torch.Tensor and parameter.layout == torch.strided
    return plain and parameter.device.type == "cpu" and parameter.is_floating_point() and parameter.is_contiguous()


def _some(parameter: torch.nn.Parameter) -> list[float]:
    flat = parameter.detach().view(-1)
    return flat[:: -(-len(flat) // _MAX_VALUES) or 1].tolist()
