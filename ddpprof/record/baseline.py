"""Steps without gradient communication: every forward in them runs as if under ``ddp.no_sync()``.

The ranks' parameters drift apart in them, so nothing that comes after may count: the job ends with them, and
checkpoints are not written. The user's own ``no_sync()`` goes on to mean what it means.
"""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel


class Baseline:
    def __init__(self) -> None:
        self._held: dict[int, tuple[DistributedDataParallel, bool]] = {}
        """modules inside a forward, and what they are to do afterwards"""
        self.has_begun = False

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        self.has_begun = True
        self._held.setdefault(id(ddp), (ddp, bool(ddp.require_backward_grad_sync)))
        ddp.require_backward_grad_sync = False

    def forward_is_over(self, ddp: DistributedDataParallel) -> None:
        """Also before a forward: the last one may have failed half-way."""
        held = self._held.pop(id(ddp), None)
        if held is not None:
            ddp.require_backward_grad_sync = held[1]
