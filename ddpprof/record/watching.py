"""The events of each step after the recorded ones. Only the pulse and the number of steps go on, at little cost.

They come from `patches`. Code that runs once in a step is never warm, so that every call in here counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import time_ns
from typing import Any

import torch
from torch import is_grad_enabled
from torch.nn.parallel import DistributedDataParallel

from ddpprof.model.pulse import Activity, StepFlag
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.steps import StepDetector

_OTHER, _DATA, _FORWARD = int(Activity.OTHER), int(Activity.DATA), int(Activity.FORWARD)
_OPTIMIZER, _EVALUATION = int(Activity.OPTIMIZER), int(Activity.EVALUATION)
_TASK_OF_BACKWARD = torch._C._current_graph_task_id


@dataclass(frozen=True, slots=True)
class WatchedSteps:
    """The `StepEvents` of steps that are not recorded."""

    pulse: PulseWriter | None
    finder: StepDetector
    training_thread: int
    count_step: Callable[[], None]
    ddp_forward_fails: Callable[[DistributedDataParallel, RuntimeError], None]
    runs_out: Callable[[Any], None]
    """called with the iterator of a loader at its end"""
    give_up: Callable[[Exception], None]

    def ddp_forward_begins(self, ddp: DistributedDataParallel) -> None:
        pulse = self.pulse
        try:
            if not is_grad_enabled():
                if pulse is not None:
                    pulse.flag(StepFlag.EVALUATED)
                    pulse.begins(_EVALUATION)
                return
            if self.finder.forward_begins(id(ddp), ddp.require_backward_grad_sync):
                self.count_step()
            if pulse is not None:
                pulse.begins(_FORWARD)
        except Exception as error:
            self.give_up(error)

    def ddp_post_forward(self, original: Callable[..., Any], ddp: Any, output: Any) -> Any:
        inner_end_ns = time_ns()
        result = original(ddp, output)
        if self.pulse is not None:
            try:
                self.pulse.forward_ends(ddp, inner_end_ns)
            except Exception as error:
                self.give_up(error)
        return result

    def ddp_sync_buffers(self, original: Callable[..., Any], ddp: Any) -> Any:
        return self.work_waits(original, ddp)

    def work_waits(self, original: Callable[..., Any], /, *work: Any, **kwargs: Any) -> Any:
        return original(*work, **kwargs) if self.pulse is None else self.pulse.waits(original, *work, **kwargs)

    def backward_begins(self, tensors: Any) -> bool:
        """Handle a backward pass. Returns False if it is inside another, as in reentrant checkpointing."""
        if self.pulse is None or _TASK_OF_BACKWARD() != -1 or get_ident() != self.training_thread:
            return False
        self.pulse.backward_begins(tensors)
        return True

    def backward_is_over(self) -> None:
        """Handle the end of a backward pass of which `backward_begins` returned True."""
        if self.pulse is not None:
            try:
                self.pulse.backward_ends()
            except Exception as error:
                self.give_up(error)

    def optimizer_begins(self, _args: Any, _kwargs: Any) -> None:
        if self.pulse is not None:
            self.pulse.begins(_OPTIMIZER)

    def optimizer_ends(self, optimizer: Any) -> None:
        try:
            if self.finder.optimizer_stepped(id(optimizer)):
                self.count_step()
            elif self.pulse is not None:
                self.pulse.begins(_OTHER)
        except Exception as error:
            self.give_up(error)

    def loader_fetches(self, original: Callable[..., Any], iterator: Any) -> Any:
        pulse = self.pulse if get_ident() == self.training_thread else None
        if pulse is not None:
            pulse.begins(_DATA)
        try:
            return original(iterator)
        except StopIteration:
            if pulse is not None:
                pulse.flag(StepFlag.RAN_OUT)
            self.runs_out(iterator)
            raise
        finally:
            if pulse is not None:
                pulse.begins(_OTHER)
