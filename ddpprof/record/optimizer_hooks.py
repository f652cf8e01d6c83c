"""Hooks around every ``Optimizer.step``. A compiled step contains them, so torch.compile may compile this module."""

from __future__ import annotations

from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddpprof.record.events import EVENTS
from ddpprof.record.patches import with_told_closure


def hook_optimizers() -> list[Any]:
    """Report the beginning and the end of every ``Optimizer.step``. Return handles with ``remove()``.

    In compiled code, the hooks are empty.
    """

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return None
        EVENTS.optimizer_begins(optimizer)
        return with_told_closure(args, kwargs) if "closure_begins" in EVENTS.heard else None

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_dynamo_compiling():
            EVENTS.num_optimizer_steps += 1
            EVENTS.optimizer_ends(optimizer)

    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
