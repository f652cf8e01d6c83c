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

if TYPE_CHECKING:
    from ddpprof.record.session import Session

_active: Session | None = None
_waiting: Callable[[], None] | None = None
_originals: list[tuple[Any, str, Any]] = []


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
        "_ddp_init_helper": _ddp_init_helper,
        "forward": _forward,
        "_pre_forward": _pre_forward,
        "_post_forward": _post_forward,
        "_sync_buffers": _sync_buffers,
        "register_comm_hook": _register_comm_hook,
    }
    absent = [name for name in wrappers if not hasattr(ddp, name)]
    if absent:
        raise CannotRecord(f"this torch's DistributedDataParallel has no {absent[0]}")
    for name, wrapper in wrappers.items():
        _wrap(ddp, name, wrapper)
    single_process = sys.modules.get("torch.nn.parallel.data_parallel")
    if single_process is not None:
        _wrap(single_process.DataParallel, "__init__", _data_parallel_init)
        _wrap(single_process.DataParallel, "forward", _data_parallel_forward)


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
    _wrap(DataLoader, "__iter__", _loader_iter)
    _wrap(_BaseDataLoaderIter, "__next__", _loader_next)
    _wrap(DistributedSampler, "set_epoch", _set_epoch)
    _wrap(GradScaler, "step", _scaler_step)
    _wrap(profile, "_prepare_trace", _prepare_trace)
    _wrap(torch.autograd, "backward", _backward)  # every `Tensor.backward` calls it
    _wrap(torch.cuda.CUDAGraph, "capture_begin", _capture_begin)
    _wrap(torch.cuda.CUDAGraph, "capture_end", _capture_end)
    _wrap(torch.cuda.CUDAGraph, "replay", _replay)
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


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, functools.wraps(original)(make(original)))


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Exclude `function` from torch.compile, but not the functions that it calls."""
    from torch._compile import _disable_dynamo

    return _disable_dynamo(function, recursive=False)


def _ddp_init_helper(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
        _begin_waiting()
        return original(self, *args, **kwargs)

    return init_helper


def _begin_waiting() -> None:
    global _waiting
    begin, _waiting = _waiting, None
    if begin is not None:
        begin()


def _data_parallel_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        _begin_waiting()
        original(self, *args, **kwargs)

    return init


def _data_parallel_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    from torch._compile import _disable_dynamo

    @_disable_dynamo
    def begins(session: Session, model: Any) -> None:
        session.data_parallel_forward_begins(model)

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        session = _active
        if session is not None:
            begins(session, self)
        return original(self, *inputs, **kwargs)

    return _untraced(forward)


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    from torch._compile import _disable_dynamo

    @_disable_dynamo
    def begins(session: Session, ddp: Any) -> None:
        session.ddp_forward_begins(ddp)

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        session = _active
        if session is not None:
            begins(session, self)
        return original(self, *inputs, **kwargs)

    return _untraced(forward)


def _pre_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        session = _active
        if session is None:
            return original(self, *inputs, **kwargs)
        return session.ddp_pre_forward(original, self, inputs, kwargs)

    return _untraced(pre_forward)


def _post_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def post_forward(self: Any, output: Any) -> Any:
        session = _active
        if session is None:
            return original(self, output)
        return session.ddp_post_forward(original, self, output)

    return _untraced(post_forward)


def _sync_buffers(original: Callable[..., Any]) -> Callable[..., Any]:
    def sync_buffers(self: Any) -> Any:
        session = _active
        if session is None:
            return original(self)
        return session.ddp_sync_buffers(original, self)

    return _untraced(sync_buffers)


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


def _loader_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    def iterate(self: Any) -> Any:
        session = _active
        if session is not None:
            session.loader_begins(self)
        return original(self)

    return iterate


def _loader_next(original: Callable[..., Any]) -> Callable[..., Any]:
    def fetch(self: Any) -> Any:
        session = _active
        if session is None:
            return original(self)
        return session.loader_fetches(original, self)

    return fetch


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        session = _active
        if session is not None and not session.saves(f):
            return None
        return original(obj, f, *args, **kwargs)

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


def _scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Count a step that the scaler skips because gradients overflowed: it is still a step of the training."""

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        session = _active
        if session is None:
            return original(self, optimizer, *args, **kwargs)
        before = session.num_optimizer_steps
        result = original(self, optimizer, *args, **kwargs)
        if session.num_optimizer_steps == before:
            session.scaler_skipped(optimizer)
        return result

    return step


def _set_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_epoch(self: Any, epoch: int) -> Any:
        session = _active
        if session is not None:
            session.sets_epoch(self)
        return original(self, epoch)

    return set_epoch


def _capture_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = _active
        if session is not None:
            session.graphs.capture_begins()
        return original(self, *args, **kwargs)

    return capture_begin


def _capture_end(original: Callable[..., Any]) -> Callable[..., Any]:
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            session = _active
            if session is not None:
                session.graphs.capture_ends()

    return capture_end


def _replay(original: Callable[..., Any]) -> Callable[..., Any]:
    def replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = _active
        if session is not None:
            session.graph_replays()
        return original(self, *args, **kwargs)

    return replay


def _prepare_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make room when the user starts a profiler of their own."""

    def prepare_trace(self: Any) -> Any:
        session = _active
        if session is not None:
            session.another_profiler_starts(self)
        return original(self)

    return prepare_trace


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
