"""The methods of torch that ddpprof wraps. Each wrapper calls the original exactly once and returns its result.

The one exception is saving (and deleting checkpoints) in steps whose result is discarded: ``--baseline-steps``, trials.
Rare events reach the active session, and those of every step `step_events`. Without an active session a wrapper costs
one comparison. `remove` restores the originals.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddpprof.errors import CannotRecord
from ddpprof.record.ddp_construction import ModelComparison, comparing, noting_parameters

if TYPE_CHECKING:
    from ddpprof.record.session import Session
    from ddpprof.record.watching import WatchedSteps


_active: Session | None = None
step_events: Session | WatchedSteps | None = None
"""who is told of what happens in every step: the active session, or less code after the recorded steps"""
_waiting: Callable[[], None] | None = None
_originals: list[tuple[Any, str, Any]] = []

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
"""a function from the original to what replaces it"""


def activate(session: Session | None) -> None:
    """Send all events to `session` from now on, or to nobody."""
    global _active, step_events
    _active = step_events = session


def send_step_events_to(events: WatchedSteps | None) -> None:
    """Send the events of every step to `events` from now on; ``None``: to the active session."""
    global step_events
    step_events = _active if events is None else events


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
    wrappers: dict[str, Wrapper] = {
        "__init__": _beginning_first,  # it may fail before it builds its reducer
        "_ddp_init_helper": lambda original: noting_parameters(_beginning_first(original)),
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
        wrap(ddp, name, wrapper)
    for name, wrapper in comparing(ModelComparison()).items():
        owner = ddp if hasattr(ddp, name) else distributed
        if hasattr(owner, name):
            wrap(owner, name, wrapper)
    single_process = sys.modules.get("torch.nn.parallel.data_parallel")
    if single_process is not None:
        tell_forward = _telling(lambda session, model: session.data_parallel_forward_begins(model))
        wrap(single_process.DataParallel, "__init__", _beginning_first)
        wrap(single_process.DataParallel, "forward", tell_forward)


@functools.cache
def _forget_in_forked_children() -> None:
    """Deactivate the session in forked children, such as DataLoader workers: the recording belongs to the parent."""
    os.register_at_fork(after_in_child=lambda: activate(None))


def install_around_training() -> None:
    """Wrap functions outside DDP, once torch is imported: data, ``backward``, checkpoints, RPC, the user's profiler."""
    import torch
    import torch.distributed as dist
    from torch.amp.grad_scaler import GradScaler
    from torch.autograd.profiler import profile
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    from torch.utils.data.distributed import DistributedSampler

    from ddpprof.record.step_notes import wrap_invoke

    if any(owner is DataLoader for owner, _, _ in _originals):
        return
    wrap(DataLoader, "__iter__", _telling(lambda session, loader: session.loader_begins(loader)))
    wrap(_BaseDataLoaderIter, "__next__", _next)
    wrap(DistributedSampler, "set_epoch", _telling(lambda session, sampler: session.sets_epoch(sampler)))
    wrap(GradScaler, "step", _scaler_step)
    # The session makes room when the user starts a profiler of their own.
    wrap(profile, "_prepare_trace", _telling(lambda session, inner: session.another_profiler_starts(inner)))
    if dist.is_available():
        wrap(dist.Work, "wait", _work_wait)  # most collectives of a script end in it
    wrap(torch.autograd, "backward", _backward)  # every `Tensor.backward` calls it
    wrap(torch.cuda.CUDAGraph, "capture_begin", _telling(lambda session, _graph: session.graphs.capture_begins()))
    wrap(torch.cuda.CUDAGraph, "capture_end", _capture_end)
    wrap(torch.cuda.CUDAGraph, "replay", _telling(lambda session, _graph: session.graph_replays()))
    wrap(torch.serialization, "save", _save)
    _originals.append((torch, "save", torch.save))
    rpc = sys.modules.get("torch.distributed.rpc.api")
    if hasattr(rpc, "_invoke_rpc"):
        wrap(rpc, "_invoke_rpc", wrap_invoke)
    torch.save = torch.serialization.save  # one object under both names, or it could not be pickled


def installed() -> bool:
    return bool(_originals)


def remove() -> None:
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def wrap(owner: Any, name: str, make: Wrapper) -> None:
    """Replace a function of `owner` by what `make` returns, until `remove`."""
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, functools.wraps(original)(make(original)))


def _telling(tell: Callable[[Session, Any], None]) -> Wrapper:
    """Wrap a method: before each call, `tell` the active session about the object."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def told(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            session = _active
            if session is not None:
                tell(session, self)
            return original(self, *args, **kwargs)

        return told

    return wrapper


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        events = step_events
        if events is None:
            return original(self, *inputs, **kwargs)
        events.ddp_forward_begins(self)
        try:
            return original(self, *inputs, **kwargs)
        except Exception as error:
            events.ddp_forward_fails(self, error)
            raise

    return forward


def _pre_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        session = _active if step_events is _active else None
        if session is None:
            return original(self, *inputs, **kwargs)
        return session.ddp_pre_forward(original, self, *inputs, **kwargs)

    return pre_forward


def _post_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def post_forward(self: Any, output: Any) -> Any:
        events = step_events
        return original(self, output) if events is None else events.ddp_post_forward(original, self, output)

    return post_forward


def _sync_buffers(original: Callable[..., Any]) -> Callable[..., Any]:
    def sync_buffers(self: Any) -> Any:
        events = step_events
        return original(self) if events is None else events.ddp_sync_buffers(original, self)

    return sync_buffers


def _work_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        events = step_events
        if events is None:
            return original(self, *args, **kwargs)
        return events.work_waits(original, self, *args, **kwargs)

    return wait


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    def next_batch(self: Any) -> Any:
        events = step_events
        return original(self) if events is None else events.loader_fetches(original, self)

    return next_batch


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


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    from torch import Tensor

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        events = step_events
        if events is None:
            return original(tensors, *args, **kwargs)
        if type(tensors) is not Tensor and isinstance(tensors, Iterator):
            tensors = tuple(tensors)  # both need to see them
        tells = events.backward_begins(tensors)
        result = original(tensors, *args, **kwargs)
        if tells:
            events.backward_is_over()
        return result

    return backward


def _scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Count a step that the scaler skips because gradients overflowed: it is still a step of the training."""

    def step(self: Any, /, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        session = _active
        if session is None:
            return original(self, optimizer, *args, **kwargs)
        before = session.finder.num_optimizer_steps
        result = original(self, optimizer, *args, **kwargs)
        if session.finder.num_optimizer_steps == before:
            session.scaler_skipped(optimizer)
        return result

    return step


def _capture_end(original: Callable[..., Any]) -> Callable[..., Any]:
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            session = _active
            if session is not None:
                session.graphs.capture_ends()

    return capture_end


_OF_TRAINER = "Trainer", ("_save_checkpoint", "save_model")
_OF_ACCELERATOR = "Accelerator", ("save_state", "save_model")
_OF_STRATEGY = "Strategy", ("save_checkpoint", "remove_checkpoint")
_OF_MODEL_CHECKPOINT = "ModelCheckpoint", ("_save_last_checkpoint",)  # which may be a link to another one
_SAVING_METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "transformers.trainer": _OF_TRAINER,
    "transformers.modeling_utils": ("PreTrainedModel", ("save_pretrained",)),
    "peft.peft_model": ("PeftModel", ("save_pretrained",)),
    "accelerate.accelerator": _OF_ACCELERATOR,
    "lightning.pytorch.strategies.strategy": _OF_STRATEGY,
    "lightning.pytorch.callbacks.model_checkpoint": _OF_MODEL_CHECKPOINT,
    "pytorch_lightning.strategies.strategy": _OF_STRATEGY,
    "pytorch_lightning.callbacks.model_checkpoint": _OF_MODEL_CHECKPOINT,
    "lightning.fabric.strategies.strategy": ("Strategy", ("save_checkpoint",)),
    "lightning_fabric.strategies.strategy": ("Strategy", ("save_checkpoint",)),
}
"""module → class, and its methods"""


def wrap_framework_saves() -> None:
    """Wrap the methods of the frameworks that have been imported."""
    for owner, name in saving_methods():
        wrap(owner, name, _framework_save)
    for owner, name in lists_of_old_checkpoints():
        wrap(owner, name, _old_checkpoints)


def saving_methods() -> Iterator[tuple[type, str]]:
    """Yield the class and the name of each of them, in frameworks that have been imported."""
    for module, (kind, names) in _SAVING_METHODS.items():
        owner = getattr(sys.modules.get(module), kind, None)
        if owner is not None:
            yield from ((owner, name) for name in names if hasattr(owner, name))


def lists_of_old_checkpoints() -> Iterator[tuple[Any, str]]:
    """Yield the owner and the name of each function that lists the checkpoints which the Trainer deletes at its end."""
    trainer = sys.modules.get("transformers.trainer")
    for owner, name in ((trainer, "sort_checkpoints"), (getattr(trainer, "Trainer", None), "_sorted_checkpoints")):
        if hasattr(owner, name):
            yield owner, name


def _framework_save(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = active()
        if session is not None and not session.keeps_checkpoints(type(self).__name__):
            return None
        return original(self, *args, **kwargs)

    return save


def _old_checkpoints(original: Callable[..., Any]) -> Callable[..., Any]:
    def old_checkpoints(*args: Any, **kwargs: Any) -> Any:
        session = active()
        if session is not None and not session.may_delete_checkpoints():
            return []
        return original(*args, **kwargs)

    return old_checkpoints
