"""DDP modified for a trial of `ddpprof overhead`, `scale`, `sweep` or `tune`, without editing the script.

other arguments   arguments of DDP's constructor are replaced, however the script gave them
a hook            one of torch's own hooks is registered, which rounds what is sent
without DDP       a pass-through: scripts see a `DistributedDataParallel` in every respect (``module``, the keys of
                  ``state_dict``, ``no_sync``, ``join``, comm hooks), but its reducer is unhooked from the gradients,
                  and its forward only calls the module; for the whole training, or in alternating blocks of steps

Inputs are moved to DDP's device in either case. Without DDP the ranks train independently.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ddpprof.errors import CannotRecord
from ddpprof.record.settings import Settings

_NOT_WITHOUT_DDP = ("mixed_precision", "delay_all_reduce_named_params")
"""arguments whose work DDP does itself, so that the module would compute something else without DDP"""

_AWAY = "_ddpprof_takes_ddp_away"
"""attribute of a module whose reducer is unhooked"""


def install(distributed: ModuleType, settings: Settings) -> None:
    """Modify DDP if that is asked for, before anything else wraps the methods of `torch.nn.parallel.distributed`.

    Raises `CannotRecord`.
    """
    if not (settings.ddp or settings.comm_hook or settings.without_ddp or settings.ddp_blocks):
        return
    ddp = distributed.DistributedDataParallel
    known = inspect.signature(ddp.__init__).parameters
    unknown = [name for name in settings.ddp if name not in known]
    if unknown:
        raise CannotRecord(f"this torch's DistributedDataParallel has no argument {unknown[0]}")
    ddp.__init__ = functools.wraps(ddp.__init__)(_init(ddp.__init__, settings))
    if settings.comm_hook is not None:
        ddp.__init__ = functools.wraps(ddp.__init__)(_hooked(ddp.__init__, settings.comm_hook))
    if settings.without_ddp or settings.ddp_blocks:
        ddp.forward = functools.wraps(ddp.forward)(_forward(ddp.forward, distributed))
    if settings.without_ddp:
        ddp._ddp_init_helper = functools.wraps(ddp._ddp_init_helper)(_init_helper(ddp._ddp_init_helper))


def switch(ddp: Any, on: bool) -> None:
    """Take DDP away from its module, or put it back with a new reducer, as in unpickling. Call this between two steps.

    Raises `CannotRecord`.
    """
    from ddpprof.record.environment import has_compiled  # which imports torch

    if on != getattr(ddp, _AWAY, False):
        return
    if has_compiled():
        raise CannotRecord("code that torch.compile made with DDP would run without it. Use: ddpprof overhead --apart")
    setattr(ddp, _AWAY, not on)
    if not on:
        ddp.reducer._remove_autograd_hooks()
        return
    parameters, expect_sparse = ddp._build_params_for_reducer()  # torch crashes with those that are frozen by now
    names = ddp._build_debug_param_to_name_mapping(parameters)
    del ddp.reducer  # two reducers would need twice the memory
    ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    hooks, ddp._comm_hooks = ddp._comm_hooks, []
    for hook, state in hooks:
        ddp.register_comm_hook(state, hook)


def _init(original: Callable[..., None], settings: Settings) -> Callable[..., None]:
    signature, replaced = inspect.signature(original), settings.ddp
    takes_ddp_away = settings.without_ddp or settings.ddp_blocks > 0

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.arguments.update(replaced)
        if "bucket_cap_mb" in replaced and "bucket_cap_mb_list" not in replaced:
            given.arguments.pop("bucket_cap_mb_list", None)  # it would override bucket_cap_mb
        for name in _NOT_WITHOUT_DDP if takes_ddp_away else ():
            if given.arguments.get(name) is not None:
                raise RuntimeError(f"ddpprof cannot take DDP away: the script passes {name}")
        original(*given.args, **given.kwargs)
        if settings.ddp_blocks and self._use_python_reducer:
            raise RuntimeError("ddpprof cannot alternate with a compiled DDP. Use: ddpprof overhead --apart")
        if settings.without_ddp:
            for hook in getattr(self, "_accum_grad_hooks", []):
                hook.remove()

    return init


def _hooked(original: Callable[..., None], name: str) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        original(self, *args, **kwargs)
        self.register_comm_hook(self.process_group, getattr(default_hooks, name))

    return init


def _init_helper(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_helper(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.reducer._remove_autograd_hooks()
        setattr(self, _AWAY, True)

    return init_helper


def _forward(original: Callable[..., Any], distributed: ModuleType) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not getattr(self, _AWAY, False):
            return original(self, *inputs, **kwargs)
        if self.device_ids and (inputs or kwargs):
            device = distributed.torch.device(self.device_type, self.device_ids[0])
            moved, named = distributed._to_kwargs(inputs, kwargs, device, self.use_side_stream_for_tensor_copies)
            inputs, kwargs = moved[0], named[0]
        return self.module(*inputs, **kwargs)

    return forward
