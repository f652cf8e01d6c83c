"""The events of each step after the recorded ones. Only the pulse and the number of steps go on, at little cost.

They come from `patches`. Code that runs once in a step is never in the processor's caches, so every
call in here counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import is_grad_enabled
from torch.nn.parallel import DistributedDataParallel

from ddpprof.model.pulse import Activity, StepFlag

if TYPE_CHECKING:
    from ddpprof.record.recording import Recording

_OTHER, _FORWARD, _EVALUATION = int(Activity.OTHER), int(Activity.FORWARD), int(Activity.EVALUATION)


class WatchedSteps:
    """A receiver of the events of steps that are not recorded: the pulse takes most of them, and here steps end."""

    __slots__ = (
        "_begins",
        "_count_step",
        "_finder",
        "_give_up",
        "_pulse",
        "_runs_out",
        "backward_begins",
        "backward_is_over",
        "ddp_forward_fails",
        "ddp_post_forward",
        "ddp_sync_buffers",
        "optimizer_begins",
        "work_waits",
    )

    def __init__(self, recording: Recording) -> None:
        pulse = recording.pulse
        self._pulse, self._begins, self._finder = pulse, pulse.begins, recording.finder
        self._count_step, self._runs_out = recording.count_step, recording.loader_runs_out
        self._give_up = recording.give_up
        self.ddp_forward_fails = recording.ddp_forward_fails
        self.ddp_post_forward, self.optimizer_begins = pulse.ddp_post_forward, pulse.optimizer_begins
        self.ddp_sync_buffers = self.work_waits = pulse.work_waits
        self.backward_begins, self.backward_is_over = pulse.backward_begins, pulse.backward_is_over

    def ddp_forward_begins(self, ddp: DistributedDataParallel) -> None:
        try:
            if not is_grad_enabled():
                self._pulse.flag(StepFlag.EVALUATED)
                self._begins(_EVALUATION)
                return
            if self._finder.forward_begins(id(ddp), ddp.require_backward_grad_sync):
                self._count_step()
            self._begins(_FORWARD)
        except Exception as error:
            self._give_up(error)

    def optimizer_ends(self, optimizer: Any) -> None:
        try:
            if self._finder.optimizer_stepped(id(optimizer)):
                self._count_step()
            else:
                self._begins(_OTHER)
        except Exception as error:
            self._give_up(error)

    def loader_fetches(self, original: Callable[..., Any], iterator: Any) -> Any:
        try:
            return self._pulse.loader_fetches(original, iterator)
        except StopIteration:
            self._runs_out(iterator)
            raise
