"""Hooks around every ``Optimizer.step``, and facts about optimizers.

A compiled optimizer step contains the hooks, so this module is not excluded from torch.compile.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddpprof.model import OptimizerFacts
from ddpprof.record.events import EVENTS
from ddpprof.record.patches import with_told_closure


def hook_optimizers() -> list[Any]:
    """Report the beginning and the end of every ``Optimizer.step``. Return the hooks' handles.

    In compiled code, the hooks do nothing.
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


def optimizer_facts(optimizers: Iterable[Optimizer]) -> tuple[OptimizerFacts, ...]:
    """Return facts about each optimizer. A tensor in the state of several optimizers is counted once."""
    seen: set[int] = set()
    made = []
    for one in optimizers:
        with suppress(Exception):  # an optimizer may be of any class
            tensors = {id(value): value for value in _tensors_in(one.state) if id(value) not in seen}
            seen |= tensors.keys()
            made.append(
                OptimizerFacts(
                    name=type(one).__name__,
                    state_bytes=sum(_local(value).nbytes for value in tensors.values()),
                    is_sharded=any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(one).__mro__),
                    is_fused=one.defaults.get("fused"),
                    could_be_fused="fused" in one.defaults and all(map(_can_be_fused, _parameters(one))),
                    takes_sparse=_takes_sparse(one),
                    num_groups=len(one.param_groups),
                    num_parameters=sum(1 for _ in _parameters(one)),
                )
            )
    return tuple(made)


def _tensors_in(state: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors in an optimizer's state, a dictionary of dictionaries of tensors, numbers and lists."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors_in(value)


def _local(tensor: Any) -> torch.Tensor:
    """Return this rank's shard of a sharded tensor, or the tensor itself."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _parameters(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    return (one for group in optimizer.param_groups for one in group["params"])


def _takes_sparse(optimizer: Optimizer) -> bool:
    """Return True if sparse gradients do not change the optimizer's results.

    Adam, for example, does not accept sparse gradients, and sparse momentum grows until it contains all rows.
    """
    without = ("weight_decay", "momentum", "foreach", "fused", "differentiable")
    is_plain = not any(group.get(name) for group in optimizer.param_groups for name in without)
    return type(optimizer) in (torch.optim.SGD, torch.optim.Adagrad) and is_plain


def _can_be_fused(parameter: torch.Tensor) -> bool:
    return parameter.device.type in ("cuda", "cpu", "xpu", "mps") and parameter.is_floating_point()
