"""DDP as a trial of `ddpprof overhead`, `scale` or `sweep` wants it, without an edit of the script.

other arguments   those of DDP's constructor are replaced, however the script gave them
without DDP       a pass-through: the object is a `DistributedDataParallel` in all that a script can see (``module``,
                  the keys of ``state_dict``, ``no_sync``, ``join``, comm hooks), but its reducer is unhooked from
                  the gradients, and its forward does nothing but call the module

Inputs are moved to DDP's device in both. Ranks start from the same parameters and then train on their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ddpprof.errors import CannotRecord

_NOT_WITHOUT_DDP = ("mixed_precision", "delay_all_reduce_named_params")
"""DDP does this work itself: without DDP the module would compute something else."""


def install(distributed: ModuleType, arguments: Mapping[str, Any], without_ddp: bool) -> None:
    """Called with `torch.nn.parallel.distributed`, before anything else wraps its methods. Raises `CannotRecord`."""
    ddp = distributed.DistributedDataParallel
    known = inspect.signature(ddp.__init__).parameters
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise CannotRecord(f"this torch's DistributedDataParallel has no argument {unknown[0]}")
    ddp.__init__ = functools.wraps(ddp.__init__)(_init(ddp.__init__, arguments, without_ddp))
    if without_ddp:
        ddp._ddp_init_helper = functools.wraps(ddp._ddp_init_helper)(_init_helper(ddp._ddp_init_helper))
        ddp.forward = functools.wraps(ddp.forward)(_forward(distributed))


def _init(original: Callable[..., None], replaced: Mapping[str, Any], without_ddp: bool) -> Callable[..., None]:
    signature = inspect.signature(original)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.arguments.update(replaced)
        if without_ddp:
            for name in _NOT_WITHOUT_DDP:
                if given.arguments.get(name) is not None:
                    raise RuntimeError(f"ddpprof cannot take DDP away: the script gives it {name}")
        original(*given.args, **given.kwargs)
        if without_ddp:
            for hook in getattr(self, "_accum_grad_hooks", []):
                hook.remove()

    return init


def _init_helper(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_helper(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.reducer._remove_autograd_hooks()

    return init_helper


def _forward(distributed: ModuleType) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if self.device_ids and (inputs or kwargs):
            device = distributed.torch.device(self.device_type, self.device_ids[0])
            moved, named = distributed._to_kwargs(inputs, kwargs, device, self.use_side_stream_for_tensor_copies)
            inputs, kwargs = moved[0], named[0]
        return self.module(*inputs, **kwargs)

    return forward
