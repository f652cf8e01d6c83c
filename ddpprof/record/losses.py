"""The losses of each step: the scalars on which the script calls ``backward``.

They are copied where they are, and read when the job ends, so that no step waits for an accelerator.
"""

from __future__ import annotations

from typing import Any

import torch


class LossNotes:
    def __init__(self) -> None:
        self._steps: list[list[torch.Tensor]] = []
        self._current: list[torch.Tensor] = []

    def backward_begins(self, tensors: Any) -> None:
        """Note the losses among the `tensors` of ``torch.autograd.backward``, one or several."""
        for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 and tensor.is_floating_point():
                self._current.append(tensor.detach().clone())  # the script may later add other ranks' losses in place

    def end_step(self) -> None:
        self._steps.append(self._current)
        self._current = []

    def values(self) -> list[list[str]]:
        """Return the losses of each step as ``float.hex``, which is exact and can represent NaN in JSON."""
        return [[float(tensor).hex() for tensor in step] for step in self._steps]
