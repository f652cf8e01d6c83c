"""Which parameters got a gradient in a backward pass? Noted where torch itself does not: on accelerators.

There DDP's logger keeps the order of gradients of its first ten iterations and of every hundredth only, and of modules
on several devices never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Accumulated:
    """Of one DDP module, in the steps whose inside is recorded, and in those that are skipped at first.

    Every other step is recorded lightly: branches that take turns by twos would never be seen there.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._handles: list[Any] = []
        self._seen: set[int] = set()
        self.ever: set[int] = set()
        """indices of parameters that got a gradient in any pass while this noted"""

    @property
    def is_noted(self) -> bool:
        return bool(self._handles)

    def note(self, on: bool) -> None:
        """Between two steps: whether to note from now on."""
        if on == self.is_noted:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = (
            [one.register_post_accumulate_grad_hook(self._noting(index)) for index, one in enumerate(self._parameters)]
            if on
            else []
        )

    def _noting(self, index: int) -> Callable[[torch.Tensor], None]:
        seen, ever = self._seen, self.ever  # the parameter keeps the hook, and the hook must not keep the parameters

        def note(_parameter: torch.Tensor) -> None:
            seen.add(index)
            ever.add(index)

        return note

    def begin_backward(self) -> None:
        self._seen.clear()

    def lacking(self) -> set[int]:
        """Return the indices of parameters without gradient since `begin_backward`."""
        return set(range(len(self._parameters))) - self._seen
