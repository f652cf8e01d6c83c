"""The events of torch that a recording is made of, from its first DDP forward to its end.

They come from `patches`. A method that receives an original calls it once, whatever happens.
"""

from __future__ import annotations

import functools
import inspect
import os
import pkgutil
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ddpprof.record
from ddpprof.errors import DdpprofError
from ddpprof.model import StepMode
from ddpprof.model.pulse import Activity, StepFlag
from ddpprof.record import framework_saves, patches
from ddpprof.record.buckets import ReducerTimer, timed_hook
from ddpprof.record.optimizer_hooks import hook_optimizers
from ddpprof.record.recording import Recording, harmless
from ddpprof.record.reducer import ddp_modules, known_to_ddp
from ddpprof.record.standby import STANDBY

_OTHER_PACKAGES = ("ddpprof.model", "ddpprof.monitor")
_MOST_TO_ALLOCATE = 3
"""number of steps on a DDP module's inner module that a script may take to allocate memory, before it calls DDP"""
_COMPILED = "optimizer_hooks"
"""module of ours that torch.compile may compile"""


class Session(Recording):
    """A recording that the wrappers of `patches` tell what happens."""

    def begin(self) -> None:
        """Start listening."""
        keep_out_of_compiled_graphs()
        STANDBY.prepare()
        self._notes.environment.look_who_calls()
        patches.install_around_training()
        if self._settings.trial or self._settings.baseline_steps:
            framework_saves.install()
        self._handles = hook_optimizers()
        patches.activate(self)

    @harmless
    def ddp_forward_begins(self, ddp: DistributedDataParallel) -> None:
        """Handle a forward before the profiler marks it, so that a step that begins here contains all of it."""
        if self._window.stopping:
            raise SystemExit(0)
        if not torch.is_grad_enabled():
            self.pulse.flag(StepFlag.EVALUATED)
            self.pulse.begins(Activity.EVALUATION)
            return
        if not self._job.attached:
            self._attach(ddp)
        if self._job.alone:
            raise DdpprofError("the script trained with DataParallel before DistributedDataParallel.")
        self._notes.module(ddp)
        self._notes.unaveraged.is_called(ddp)
        self._baseline.forward_is_over(ddp)
        self._end_step_that_is_over()
        if self.finder.forward_begins(id(ddp), ddp.require_backward_grad_sync):
            self._end_step()
        self.pulse.begins(Activity.FORWARD)

    @harmless
    def data_parallel_forward_begins(self, model: torch.nn.DataParallel[Any]) -> None:
        """Handle `nn.DataParallel`, whose whole job is one process. With a process group, DDP counts instead."""
        if self._window.stopping:
            raise SystemExit(0)
        if not torch.is_grad_enabled() or (dist.is_available() and dist.is_initialized()):
            return
        if self._is_over:
            if self.finder.forward_begins(id(model), synchronises=True):
                self.count_step()
            return
        if not self._job.attached:
            if self._settings.baseline_steps or self._settings.alone_steps:
                raise DdpprofError("--baseline-steps needs DistributedDataParallel, but this is DataParallel.")
            self._begin_training(self._job.attach_alone)
        self._notes.data_parallel_module(model)
        self._end_step_that_is_over()
        if self.finder.forward_begins(id(model), synchronises=True):
            self._end_step()
        self._notes.feeding.forward_begins((), has_gradients=True, recording=self._notes.recording)

    def ddp_pre_forward(self, original: Callable[..., Any], ddp: Any, /, *inputs: Any, **kwargs: Any) -> Any:
        start, had_rebuilt = time.time_ns(), getattr(ddp, "_has_rebuilt_buckets", True)
        if self._window.mode in (StepMode.BASELINE, StepMode.ALONE):
            self._note(self._baseline.forward_begins, ddp)
        fed = [*inputs, *kwargs.values()]
        self._note(self._notes.feeding.forward_begins, fed, torch.is_grad_enabled(), self._notes.recording)
        result = original(ddp, *inputs, **kwargs)
        if self._notes.recording:
            self._note(self._notes.pre_forward_is_over, ddp, start, had_rebuilt)
        return result

    def ddp_post_forward(self, original: Callable[..., Any], ddp: Any, output: Any) -> Any:
        inner_end = time.time_ns()
        result = self.pulse.ddp_post_forward(original, ddp, output)
        self._note(self._notes.forward_is_over, ddp, inner_end)
        self._note(self._baseline.forward_is_over, ddp)
        return result

    def ddp_sync_buffers(self, original: Callable[..., Any], ddp: Any) -> Any:
        began = time.time_ns()
        result = self.work_waits(original, ddp)
        if self._notes.recording:
            self._note(self._notes.buffers_synchronised, ddp, time.time_ns() - began)
        return result

    def work_waits(self, original: Callable[..., Any], /, *work: Any, **kwargs: Any) -> Any:
        return self.pulse.work_waits(original, *work, **kwargs)

    def wrap_comm_hook(self, ddp: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook that also times its buckets. On an accelerator a future says nothing about its kernel."""
        if not inspect.isroutine(hook) or getattr(ddp, "device_type", None) != "cpu":
            return hook
        watched = weakref.ref(ddp)  # the reducer keeps the hook, so the hook must not keep the module

        def times_now() -> ReducerTimer | None:
            module = self._notes.find(watched())
            return module.times if module is not None else None

        return timed_hook(hook, times_now)

    def optimizer_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Return arguments for the step whose closure reports when it runs; ``None`` if they stay unchanged."""
        self.pulse.optimizer_begins(args, kwargs)
        if self._job.attached and args:
            self._note(self._notes.unaveraged.optimizer_begins, args[0], self._window.step)
        if not self._notes.recording:
            return None
        notes = self._notes
        self._note(notes.optimizer_begins)
        ends, begins = (partial(self._note, note) for note in (notes.optimizer_ends, notes.optimizer_begins))
        return _with_noted_closure(args, kwargs, ends, begins)

    @harmless
    def optimizer_ends(self, optimizer: Any) -> None:
        self.pulse.begins(Activity.OTHER)
        if self._notes.recording:
            self._notes.optimizer_ends()
        self._optimizer_is_done(optimizer)

    @harmless
    def scaler_skipped(self, optimizer: Any) -> None:
        """Note that a `GradScaler` skipped the optimizer's step because gradients overflowed; a training step ends."""
        while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = inner
        if not self._is_over:
            self._optimizer_is_done(optimizer)
        elif self.finder.optimizer_stepped(id(optimizer)):
            self.count_step()

    def _optimizer_is_done(self, optimizer: Any) -> None:
        if not self._job.attached:
            self._trains_without_forward(optimizer)
        self._notes.optimizer = weakref.ref(optimizer)
        self._notes.unaveraged.optimizer_steps(optimizer)
        if self._job.attached and self.finder.optimizer_stepped(id(optimizer)):
            if self._between_backward_passes():
                self._end_step()
            else:
                self._step_is_over = True

    def _trains_without_forward(self, optimizer: Any) -> None:
        """Begin with several steps of a DDP module's optimizer after backward passes, but without a forward of DDP.

        Fewer steps may only allocate memory before the training.
        """
        modules = ddp_modules()
        if not self._had_backward or self._not_of_ddp.get(optimizer) == len(modules):
            return
        optimized = {id(one) for group in optimizer.param_groups for one in group["params"]}
        ddp = next((ddp for ddp in modules if not optimized.isdisjoint(known_to_ddp([ddp]))), None)
        if ddp is None:
            self._not_of_ddp[optimizer] = len(modules)
            return
        self._steps_without_forward += 1
        if self._steps_without_forward > max(_MOST_TO_ALLOCATE, self._window.num_skipped):
            self._attach(ddp)
            self._window.without_common_steps()
            self.finder.steps_without_forward()

    def backward_begins(self, tensors: Any) -> bool:
        """Handle a backward pass. Returns False if it is inside another, as in reentrant checkpointing."""
        self._had_backward = True
        if not self._between_backward_passes():
            return False
        self._note(self._backward_begins, tensors)
        return True

    def _backward_begins(self, tensors: Any) -> None:
        # A trace would show the look at the loss as the script's own.
        self.pulse.backward_begins(None if self._window.profiler.running else tensors)
        if self._losses is not None:
            self._losses.backward_begins(tensors)
        if self._notes.recording:
            self._notes.backward_begins()

    @harmless
    def backward_is_over(self) -> None:
        """Handle the end of a backward pass of which `backward_begins` returned True."""
        self.pulse.backward_is_over()
        if self._notes.recording:
            self._notes.backward_is_over()

    def loader_fetches(self, original: Callable[..., Any], iterator: Any) -> Any:
        training_waits = threading.get_ident() == self._training_thread
        if training_waits:
            self._end_step_that_is_over()
        return self.pulse.loader_fetches(partial(self._fetches_noted, original, training_waits), iterator)

    def _fetches_noted(self, original: Callable[..., Any], training_waits: bool, iterator: Any) -> Any:
        """Fetch a batch, and note which one it is and how long training waited for it."""
        began, batch = time.time_ns(), None
        try:
            batch = original(iterator)
            return batch
        finally:
            waited_ns = time.time_ns() - began if training_waits else 0
            self._note(self._notes.feeding.fetches, iterator, batch, waited_ns, self._notes.recording)

    @harmless
    def loader_begins(self, loader: Any) -> None:
        if threading.get_ident() != self._training_thread:
            self._notes.feeding.loader_begins(loader)
        else:
            evaluates = self._notes.loader_begins(loader)
            self.pulse.flag(StepFlag.BEGAN_EPOCH | (StepFlag.EVALUATED if evaluates else 0))

    def sets_epoch(self, sampler: Any) -> None:
        self._note(self._notes.feeding.sets_epoch, sampler)

    def saves(self, target: Any) -> bool:
        """Return whether to save: not if a trial, or the ranks' diverged parameters, would overwrite a file.

        Writing to a buffer or an open file is left to the script: suppressing it would leave an empty file.
        """
        if threading.get_ident() == self._training_thread:
            self.pulse.flag(StepFlag.SAVED)
            self.pulse.begins(Activity.SAVE)
        self._note(self._notes.environment.saves, target)
        why = self._why_nothing_is_saved()
        if why is None or not isinstance(target, str | os.PathLike):
            return True
        self._say_not_saved(f"{target}: {why}", self._job.warn)
        return False

    def keeps_checkpoints(self, owner: str) -> bool:
        """Return whether objects of the class named `owner` may write and delete checkpoints; say once if not."""
        why = self._why_nothing_is_saved()
        if why is not None and owner not in self._not_saving:
            self._not_saving.add(owner)
            self._say_not_saved(f"checkpoints of {owner}: {why}", self._job.warn_for_all)
        return why is None

    def may_delete_checkpoints(self) -> bool:
        return self._why_nothing_is_saved() is None

    def _why_nothing_is_saved(self) -> str | None:
        if self._settings.trial and (self._window.step or self._closed):
            return "this is a trial"
        if self._baseline.has_begun:
            return "the steps since the profiled ones were without gradient communication"
        return None

    def _say_not_saved(self, what: str, warn: Callable[[str], None]) -> None:
        if not (self._settings.trial and self._closed):  # otherwise it has said why it ends
            warn(f"not saved: {what}.")

    def save_ends(self) -> None:
        if threading.get_ident() == self._training_thread:
            self.pulse.ends(Activity.SAVE)

    def rpc_invoked(self, *call: Any) -> None:
        if self._notes.recording:
            self._note(self._notes.rpc.invoked, *call)

    @harmless
    def another_profiler_starts(self, inner: Any) -> None:
        profiler = self._window.profiler
        if profiler.owns(inner):
            return
        profiler.another_prepares(inner)
        if not self._settings.trial:
            self._window.cut_short("the script starts a profiler of its own")
        if profiler.running:  # in steps that are worthless without ddpprof's
            profiler.stop()
            raise DdpprofError("the script started its own profiler in the profiled steps")

    @harmless
    def graph_replays(self) -> None:
        self.graphs.replays()
        if self.graphs.hide_steps and not self.graphs.captured and threading.get_ident() == self._training_thread:
            self._window.cut_short("the script replays a CUDA graph that holds whole steps, and so hides them")

    @harmless
    def explicit_step(self) -> None:
        """Handle a step that the user marks as ended."""
        self._end_step_that_is_over()
        if self.finder.step_marked():
            self.count_step() if self._is_over else self._end_step()

    @harmless
    def _note(self, note: Callable[..., None], *what: Any) -> None:
        note(*what)


def _with_noted_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], begins: Callable[[], None], ends: Callable[[], None]
) -> tuple[Any, Any] | None:
    """Return arguments of ``Optimizer.step`` whose closure reports when it runs; ``None`` if they have no closure.

    A closure computes loss and gradients, which is not the optimizer's own work.
    """
    if len(args) > 1 and callable(args[1]):  # the first is the optimizer
        return (args[0], _noted(args[1], begins, ends), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _noted(kwargs["closure"], begins, ends)}
    return None


def _noted(closure: Callable[[], Any], begins: Callable[[], None], ends: Callable[[], None]) -> Callable[[], Any]:
    @functools.wraps(closure)
    def noted() -> Any:
        begins()
        try:
            return closure()
        finally:
            ends()

    return noted


@functools.cache
def keep_out_of_compiled_graphs() -> None:
    """Tell torch.compile to leave ddpprof's code in training alone, but not the functions of others that it calls."""
    import torch._dynamo.trace_rules as rules

    own = (module.name for module in pkgutil.iter_modules(ddpprof.record.__path__) if module.name != _COMPILED)
    for name in (*(f"ddpprof.record.{name}" for name in own), *_OTHER_PACKAGES):
        rules.add(name)
