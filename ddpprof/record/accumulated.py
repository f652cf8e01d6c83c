"""Which parameters got a gradient in a backward pass? This is only recorded on accelerators, where torch does not.

There DDP's logger keeps the order of gradients only for its first ten iterations and every hundredth one, and never for
modules on several devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Accumulated:
    """Gradients of one DDP module, in the steps that are recorded in detail and the initial skipped ones.

    Only half of the first steps are recorded lightly, and may never show branches that alternate between steps.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._handles: list[Any] = []
        self._seen: set[int] = set()
        self.ever: set[int] = set()
        """indices of parameters that got a gradient in any noted pass"""

    @property
    def is_noted(self) -> bool:
        return bool(self._handles)

    def note(self, on: bool) -> None:
        """Turn noting on or off. Call this between two steps."""
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
        seen, ever = self._seen, self.ever  # the parameter keeps the hook, so the hook must not keep the parameters

        def note(_parameter: torch.Tensor) -> None:
            seen.add(index)
            ever.add(index)

        return note

    def begin_backward(self) -> None:
        self._seen.clear()

    def lacking(self) -> set[int]:
        """Return the indices of parameters without gradient since `begin_backward`."""
        return set(range(len(self._parameters))) - self._seen
