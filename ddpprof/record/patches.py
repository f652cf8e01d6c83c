"""The methods of torch that ddpprof wraps. Each wrapper calls the original exactly once and returns its result.

The one exception is saving in steps whose result is discarded (``--baseline-steps``, trials).
Without an active session a wrapper costs one comparison, and after the last recorded step a few calls. `remove`
restores the originals.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddpprof.errors import CannotRecord
from ddpprof.record.same_model import Comparison, comparing

if TYPE_CHECKING:
    from ddpprof.record.session import Session

_active: Session | None = None
_waiting: Callable[[], None] | None = None
_originals: list[tuple[Any, str, Any]] = []

_Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
"""a function from the original to what replaces it"""


def activate(session: Session | None) -> None:
    """Send events to `session` from now on, or to nobody."""
    global _active
    _active = session


def active() -> Session | None:
    return _active


def wait_for_ddp(begin: Callable[[], None]) -> None:
    """Call `begin` once, when the first DDP or DataParallel module is constructed."""
    global _waiting
    _waiting = begin


def install(distributed: ModuleType) -> None:
    """Wrap DDP's methods in `torch.nn.parallel.distributed`, perhaps while torch is still being imported."""
    if _originals:
        return
    _forget_in_forked_children()
    ddp = distributed.DistributedDataParallel
    wrappers = {
        "_ddp_init_helper": _beginning_first,
        "forward": _untraced_telling(lambda session, ddp: session.ddp_forward_begins(ddp)),
        "_pre_forward": _untraced_asking(lambda session, /, *call, **named: session.ddp_pre_forward(*call, **named)),
        "_post_forward": _untraced_asking(lambda session, *call: session.ddp_post_forward(*call)),
        "_sync_buffers": _untraced_asking(lambda session, *call: session.ddp_sync_buffers(*call)),
        "register_comm_hook": _register_comm_hook,
    }
    absent = [name for name in wrappers if not hasattr(ddp, name)]
    if absent:
        raise CannotRecord(f"this torch's DistributedDataParallel has no {absent[0]}")
    for name, wrapper in wrappers.items():
        _wrap(ddp, name, wrapper)
    for name, wrapper in comparing(Comparison()).items():
        owner = ddp if hasattr(ddp, name) else distributed
        if hasattr(owner, name):
            _wrap(owner, name, wrapper)
    single_process = sys.modules.get("torch.nn.parallel.data_parallel")
    if single_process is not None:
        tell_forward = _untraced_telling(lambda session, model: session.data_parallel_forward_begins(model))
        _wrap(single_process.DataParallel, "__init__", _beginning_first)
        _wrap(single_process.DataParallel, "forward", tell_forward)


@functools.cache
def _forget_in_forked_children() -> None:
    """Deactivate the session in forked children, such as DataLoader workers: the recording belongs to the parent."""
    os.register_at_fork(after_in_child=lambda: activate(None))


def install_around_training() -> None:
    """Wrap functions outside DDP, once torch is imported: data, ``backward``, checkpoints, RPC, the user's profiler."""
    import torch
    from torch.amp.grad_scaler import GradScaler
    from torch.autograd.profiler import profile
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    from torch.utils.data.distributed import DistributedSampler

    if any(owner is DataLoader for owner, _, _ in _originals):
        return
    _wrap(DataLoader, "__iter__", _telling(lambda session, loader: session.loader_begins(loader)))
    _wrap(_BaseDataLoaderIter, "__next__", _asking(lambda session, *call: session.loader_fetches(*call)))
    _wrap(DistributedSampler, "set_epoch", _telling(lambda session, sampler: session.sets_epoch(sampler)))
    _wrap(GradScaler, "step", _asking(_scaler_step))
    # The session makes room when the user starts a profiler of their own.
    _wrap(profile, "_prepare_trace", _telling(lambda session, inner: session.another_profiler_starts(inner)))
    _wrap(torch.autograd, "backward", _backward)  # every `Tensor.backward` calls it
    _wrap(torch.cuda.CUDAGraph, "capture_begin", _telling(lambda session, _graph: session.graphs.capture_begins()))
    _wrap(torch.cuda.CUDAGraph, "capture_end", _capture_end)
    _wrap(torch.cuda.CUDAGraph, "replay", _telling(lambda session, _graph: session.graph_replays()))
    _wrap(torch.serialization, "save", _save)
    _originals.append((torch, "save", torch.save))
    rpc = sys.modules.get("torch.distributed.rpc.api")
    if hasattr(rpc, "_invoke_rpc"):
        _wrap(rpc, "_invoke_rpc", _invoke_rpc)
    torch.save = torch.serialization.save  # one object under both names, or it could not be pickled


def installed() -> bool:
    return bool(_originals)


def remove() -> None:
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def _wrap(owner: Any, name: str, make: _Wrapper) -> None:
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, functools.wraps(original)(make(original)))


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Exclude `function` from torch.compile, but not the functions that it calls."""
    from torch._compile import _disable_dynamo

    return _disable_dynamo(function, recursive=False)


def _telling(tell: Callable[[Session, Any], None]) -> _Wrapper:
    """Wrap a method: before each call, `tell` the active session about the object."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def told(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            session = _active
            if session is not None:
                tell(session, self)
            return original(self, *args, **kwargs)

        return told

    return wrapper


def _asking(call: Callable[..., Any]) -> _Wrapper:
    """Wrap a method: while a session is active, ``call(session, original, self, …)`` calls the original."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def asked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            session = _active
            if session is None:
                return original(self, *args, **kwargs)
            return call(session, original, self, *args, **kwargs)

        return asked

    return wrapper


def _untraced_telling(tell: Callable[[Session, Any], None]) -> _Wrapper:
    """Do as `_telling`, and exclude what is told, and the wrapper, from torch.compile."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        from torch._compile import _disable_dynamo

        return _untraced(_telling(_disable_dynamo(tell))(original))

    return wrapper


def _untraced_asking(call: Callable[..., Any]) -> _Wrapper:
    return lambda original: _untraced(_asking(call)(original))


def _beginning_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a constructor: begin the recording that waits for the first module."""

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _waiting
        begin, _waiting = _waiting, None
        if begin is not None:
            begin()
        return original(self, *args, **kwargs)

    return construct


def _register_comm_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def register_comm_hook(self: Any, state: object, hook: Callable[..., Any]) -> None:
        session = _active
        if session is None:
            original(self, state, hook)
            return
        original(self, state, session.wrap_comm_hook(self, hook))
        if getattr(self, "_comm_hooks", None):
            self._comm_hooks[-1] = (hook, state)

    return register_comm_hook


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        session = _active
        if session is None:
            return original(obj, f, *args, **kwargs)
        try:
            return original(obj, f, *args, **kwargs) if session.saves(f) else None
        finally:
            session.save_ends()

    return save


def _invoke_rpc(original: Callable[..., Any]) -> Callable[..., Any]:
    from ddpprof.record.rpc import wrap_invoke

    return wrap_invoke(original, active)


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        session = _active
        if session is None:
            return original(tensors, *args, **kwargs)
        tensors = tuple(tensors) if isinstance(tensors, Iterator) else tensors  # both need to see them
        session.backward_begins(tensors)
        result = original(tensors, *args, **kwargs)
        session.backward_is_over()
        return result

    return _untraced(backward)


def _scaler_step(
    session: Session, original: Callable[..., Any], scaler: Any, /, optimizer: Any, *args: Any, **kwargs: Any
) -> Any:
    """Count a step that the scaler skips because gradients overflowed: it is still a step of the training."""
    before = session.num_optimizer_steps
    result = original(scaler, optimizer, *args, **kwargs)
    if session.num_optimizer_steps == before:
        session.scaler_skipped(optimizer)
    return result


def _capture_end(original: Callable[..., Any]) -> Callable[..., Any]:
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            session = _active
            if session is not None:
                session.graphs.capture_ends()

    return capture_end


def hook_optimizers() -> list[Any]:
    """Tell the active session before and after every ``Optimizer.step``. Returns handles with ``remove()``.

    A compiled optimizer step would trace the hooks, so they are empty for the compiler.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def before(_optimizer: Any, args: Any, kwargs: Any) -> Any:
        session = _active
        if session is None or torch.compiler.is_compiling():
            return None
        return session.optimizer_begins(args, kwargs)

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        session = _active
        if session is not None and not torch.compiler.is_compiling():
            session.optimizer_ends(optimizer)

    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
