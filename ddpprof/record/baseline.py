"""Steps without gradient communication: every forward in them runs as if under ``ddp.no_sync()``.

The ranks' parameters diverge in them, so nothing afterwards may count: the job ends with them, and no checkpoints are
written. The user's own ``no_sync()`` keeps its meaning.
"""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel


class Baseline:
    def __init__(self) -> None:
        self._held: dict[int, tuple[DistributedDataParallel, bool]] = {}
        """modules inside a forward, with their flag to restore afterwards"""
        self.has_begun = False

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        self.has_begun = True
        self._held.setdefault(id(ddp), (ddp, bool(ddp.require_backward_grad_sync)))
        ddp.require_backward_grad_sync = False

    def forward_is_over(self, ddp: DistributedDataParallel) -> None:
        """Restore the module's flag. Also call this before a forward, since the last one may have failed."""
        held = self._held.pop(id(ddp), None)
        if held is not None:
            ddp.require_backward_grad_sync = held[1]
