"""The recording of one training process, from its first DDP forward to its end.

Events come from `patches`; the session finds the steps, and `Window` records them. Any problem in here is reported once
on stderr, and training goes on.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpprof.errors import DdpprofError
from ddpprof.model import StepMode
from ddpprof.record import patches
from ddpprof.record.baseline import Baseline
from ddpprof.record.buckets import ReducerTimer, timed_hook
from ddpprof.record.closures import with_noted_closure
from ddpprof.record.compiled import keep_out_of_compiled_graphs
from ddpprof.record.graphs import Graphs
from ddpprof.record.job import JobRank
from ddpprof.record.live import LiveScalars
from ddpprof.record.losses import LossNotes
from ddpprof.record.notes import StepNotes
from ddpprof.record.settings import Settings
from ddpprof.record.steps import StepDetector
from ddpprof.record.window import Window
from ddpprof.short_training import options_for

_P = ParamSpec("_P")


def _harmless(method: Callable[_P, None]) -> Callable[_P, None]:
    """Make an error inside ddpprof end the recording, not the training."""

    @functools.wraps(method)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            session = args[0]
            assert isinstance(session, Session)
            session.give_up(error)

    return guarded


class Session:
    """One recording in one process."""

    def __init__(self, settings: Settings, live: LiveScalars | None = None) -> None:
        self._settings = settings
        self._live = live
        self._finder = StepDetector(_any_optimizer_alive)
        self._notes = StepNotes()
        self._baseline = Baseline()
        self.graphs = Graphs()
        self._losses = LossNotes() if settings.losses else None
        self._job = JobRank(settings)
        self._notes.live = live is not None
        self._window = Window(settings, self._job, self._notes, self._warn_for_all, live)
        self._handles: list[Any] = []
        self._training_thread = 0
        self._step_is_over = False
        self.num_optimizer_steps = 0
        self._closed = False

    def begin(self) -> None:
        """Start listening."""
        self._notes.environment.look_who_calls()
        patches.install_around_training()
        self._handles = patches.hook_optimizers()
        patches.activate(self)

    def _stop_listening(self) -> None:
        if patches.active() is self:
            patches.activate(None)

    @property
    def _is_over(self) -> bool:
        """Whether nothing that happens from now on counts."""
        return self._window.mode is StepMode.DONE and not self._notes.live

    # Events from `patches`. A method that receives an original calls it once, whatever happens.

    @_harmless
    def ddp_forward_begins(self, ddp: DistributedDataParallel) -> None:
        """Handle a forward before the profiler marks it, so that a step that begins here contains all of it."""
        if self._window.stopping:
            raise SystemExit(0)
        if not torch.is_grad_enabled():
            return
        if self._is_over:
            self._count_step_that_ends(self._finder.forward_begins(id(ddp), ddp.require_backward_grad_sync))
            return
        if not self._job.attached:
            self._attach(ddp)
        if self._job.alone:
            raise DdpprofError("the script trained with DataParallel before DistributedDataParallel.")
        self._notes.module(ddp)
        self._baseline.forward_is_over(ddp)
        self._end_step_that_is_over()
        if self._finder.forward_begins(id(ddp), ddp.require_backward_grad_sync):
            self._end_step()

    @_harmless
    def data_parallel_forward_begins(self, model: torch.nn.DataParallel[Any]) -> None:
        """Handle `nn.DataParallel`, whose whole job is one process. With a process group, DDP counts instead."""
        if self._window.stopping:
            raise SystemExit(0)
        if not torch.is_grad_enabled() or (dist.is_available() and dist.is_initialized()):
            return
        if self._is_over:
            self._count_step_that_ends(self._finder.forward_begins(id(model), synchronises=True))
            return
        if not self._job.attached:
            if self._settings.baseline_steps or self._settings.alone_steps:
                raise DdpprofError("--baseline-steps needs DistributedDataParallel, but this is DataParallel.")
            self._begin_training(self._job.attach_alone)
        self._notes.data_parallel_module(model)
        self._end_step_that_is_over()
        if self._finder.forward_begins(id(model), synchronises=True):
            self._end_step()
        self._notes.feeding.forward_begins((), has_gradients=True, recording=self._notes.recording)

    def ddp_pre_forward(self, original: Callable[..., Any], ddp: Any, /, *inputs: Any, **kwargs: Any) -> Any:
        start, had_rebuilt = time.time_ns(), getattr(ddp, "_has_rebuilt_buckets", True)
        if self._window.mode in (StepMode.BASELINE, StepMode.ALONE):
            self._note(self._baseline.forward_begins, ddp)
        if not self._is_over:
            fed = [*inputs, *kwargs.values()]
            self._note(self._notes.feeding.forward_begins, fed, torch.is_grad_enabled(), self._notes.recording)
        try:
            result = original(ddp, *inputs, **kwargs)
        except RuntimeError as error:
            if "Expected to have finished reduction" in str(error):
                self._note_unreduced(ddp, str(error))
            raise
        if self._notes.recording:
            self._note(self._notes.pre_forward_is_over, ddp, start, had_rebuilt)
        return result

    def ddp_post_forward(self, original: Callable[..., Any], ddp: Any, output: Any) -> Any:
        inner_end = time.time_ns()
        result = original(ddp, output)
        self._note(self._notes.forward_is_over, ddp, inner_end)
        self._note(self._baseline.forward_is_over, ddp)
        return result

    def ddp_sync_buffers(self, original: Callable[..., Any], ddp: Any) -> Any:
        began = time.time_ns()
        result = original(ddp)
        if self._notes.recording:
            self._note(self._notes.buffers_synchronised, ddp, time.time_ns() - began)
        return result

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
        if not self._notes.recording:
            return None
        self._note(self._notes.optimizer_begins)
        begins, ends = (partial(self._note, note) for note in (self._notes.closure_begins, self._notes.closure_ends))
        return with_noted_closure(args, kwargs, begins, ends)

    @_harmless
    def optimizer_ends(self, optimizer: Any) -> None:
        if self._is_over:
            self._count_step_that_ends(self._finder.optimizer_stepped(id(optimizer)))
            return
        self.num_optimizer_steps += 1
        if self._notes.recording:
            self._notes.optimizer_ends()
        self._optimizer_is_done(optimizer)

    @_harmless
    def scaler_skipped(self, optimizer: Any) -> None:
        """Note that a `GradScaler` skipped the optimizer's step because gradients overflowed; a training step ends."""
        while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = inner
        if self._is_over:
            self._count_step_that_ends(self._finder.optimizer_stepped(id(optimizer)))
            return
        self._optimizer_is_done(optimizer)

    def _optimizer_is_done(self, optimizer: Any) -> None:
        if self._job.attached and self._finder.optimizer_stepped(id(optimizer)):
            if self._between_backward_passes():
                self._end_step()
            else:
                self._step_is_over = True

    @_harmless
    def backward_begins(self, tensors: Any) -> None:
        """Handle a backward pass, unless it is inside another, as in reentrant checkpointing."""
        if self._is_over or not self._between_backward_passes():
            return
        if self._losses is not None:
            self._losses.backward_begins(tensors)
        if self._notes.recording:
            self._notes.backward_begins()

    @_harmless
    def backward_is_over(self) -> None:
        if self._notes.recording and self._between_backward_passes():
            self._notes.backward_is_over()

    def loader_fetches(self, original: Callable[..., Any], iterator: Any) -> Any:
        if self._is_over:
            return self._looks_for_its_end(original, iterator)
        training_waits = threading.get_ident() == self._training_thread
        if training_waits:
            self._end_step_that_is_over()
        began, batch = time.time_ns(), None
        try:
            batch = original(iterator)
            return batch
        finally:
            waited_ns = time.time_ns() - began if training_waits else 0
            self._note(self._notes.feeding.fetches, iterator, batch, waited_ns, self._notes.recording)

    def _looks_for_its_end(self, original: Callable[..., Any], iterator: Any) -> Any:
        """Fetch a batch after the recorded steps, when only the number of epochs counts."""
        try:
            return original(iterator)
        except StopIteration:
            self._note(self._notes.feeding.runs_out, iterator)
            raise

    def loader_begins(self, loader: Any) -> None:
        self._note(self._notes.feeding.loader_begins, loader)

    def sets_epoch(self, sampler: Any) -> None:
        self._note(self._notes.feeding.sets_epoch, sampler)

    def saves(self, target: Any) -> bool:
        """Return whether to save: not if a trial, or the ranks' diverged parameters, would overwrite a file.

        Writing to a buffer or an open file is left to the script: suppressing it would leave an empty file.
        """
        self._note(self._notes.environment.saves, target)
        trial, apart = self._settings.trial and (self._window.step or self._closed), self._baseline.has_begun
        if not (trial or apart) or not isinstance(target, str | os.PathLike):
            return True
        why = "this is a trial" if trial else "the steps since the profiled ones were without gradient communication"
        if not (trial and self._closed):  # otherwise it has said why it ends
            self._warn(f"not saved: {target}: {why}.")
        return False

    def rpc_invoked(self, *call: Any) -> None:
        if self._notes.recording:
            self._note(self._notes.rpc.invoked, *call)

    @_harmless
    def another_profiler_starts(self, inner: Any) -> None:
        profiler = self._window.profiler
        if profiler.running and not profiler.owns(inner):
            profiler.stop()
            raise DdpprofError("the script started its own profiler in the profiled steps")

    @_harmless
    def graph_replays(self) -> None:
        self.graphs.replays()
        if self.graphs.hide_steps and not self.graphs.captured and threading.get_ident() == self._training_thread:
            self._window.cut_short("the script replays a CUDA graph that holds whole steps, and so hides them")

    @_harmless
    def explicit_step(self) -> None:
        """Handle a step that the user marks as ended."""
        self._end_step_that_is_over()
        if self._finder.step_marked():
            self._end_step()

    @_harmless
    def _note(self, note: Callable[..., None], *what: Any) -> None:
        note(*what)

    @_harmless
    def _note_unreduced(self, ddp: DistributedDataParallel, complaint: str) -> None:
        self._notes.module(ddp).note_unreduced(complaint)
        self._open_files()

    # Steps.

    def _attach(self, ddp: DistributedDataParallel) -> None:
        self._notes.environment.describe(ddp)
        self._notes.module(ddp)
        self._begin_training(self._job.attach)

    def _begin_training(self, attach: Callable[[], None]) -> None:
        keep_out_of_compiled_graphs()
        self._training_thread = threading.get_ident()
        attach()
        if self._live is not None:
            self._live.open(self._job.rank, self._notes.device.is_accelerator)
        self._window.begin()

    def _between_backward_passes(self) -> bool:
        """Return whether the reducer may be touched: in a backward pass it holds its lock and awaits other threads."""
        return threading.get_ident() == self._training_thread and torch._C._current_graph_task_id() == -1

    @_harmless
    def _end_step_that_is_over(self) -> None:
        if self._step_is_over and threading.get_ident() == self._training_thread:
            self._step_is_over = False
            self._end_step()

    def _count_step_that_ends(self, has_ended: bool) -> None:
        """Count a step after the recorded ones, when only the progress of the training counts."""
        if has_ended and self._job.attached:
            self._window.count_step()

    def _end_step(self) -> None:
        if self.graphs.captured:
            self._step_is_over = True
            return
        self.graphs.step_ends()
        if self._losses is not None and not self._baseline.has_begun:
            self._losses.end_step()
        self._window.end_step()
        if self._window.is_to_open:
            self._open_files()
        self._window.begin_step()
        if self._window.stopping and threading.current_thread() is threading.main_thread():
            raise SystemExit(0)

    def _open_files(self) -> None:
        """Open the files after the last skipped step: the ranks agree, or nothing is recorded."""
        if not self._job.open_files(self._notes.device):
            self._retire()
            return
        if not self._job.everyone_records:
            self._window.do_without_profiler("not every rank runs under ddpprof, so the profiler would slow only some")
        self._window.write_facts(None)

    # The end.

    @_harmless
    def close(self, ended: str) -> None:
        """Write what there is. `ended` is ``"finished"``, ``"interrupted"`` or ``"failed: …"``."""
        if not self._job.in_this_process():
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._end_live()
        if self._between_backward_passes():  # code after a `with` block trains as if there had been none
            self._notes.begin_step(StepMode.DONE)
        if self._closed:
            return
        self._closed = True
        self._stop_listening()
        self._window.close(ended)
        if ended == "finished" and self._job.attached and self._job.files is None and not self._settings.trial:
            self._warn_for_all(self._too_short())
        if self._losses is not None and self._job.files is not None:
            self._job.files.write_losses(self._losses.values())

    def _too_short(self) -> str:
        num_steps, num_skipped, num_replays = self._window.step, self._window.num_skipped, self.graphs.num_replays
        took = f"the training took {num_steps} step{'s' if num_steps != 1 else ''}"
        if num_replays > num_steps:
            return f"{took} and replayed CUDA graphs {num_replays} times: steps within a graph cannot be seen."
        options = options_for(num_steps, num_skipped if self._notes.device.is_accelerator else 1)
        instead = "let it take more steps" if options is None else f"ddpprof trace {options} records what they show"
        return f"{took}, and the first {num_skipped} are not recorded: {instead}."

    def give_up(self, error: Exception) -> None:
        """End the recording here but not the training, unless it is a trial."""
        self._warn(f"{_one_line(error)} Recording stopped{'' if self._settings.trial else '; training goes on'}.")
        self._retire()
        with suppress(Exception):  # the error was already reported, and training must go on
            self._window.give_up()
        with suppress(Exception):
            self._window.write_facts(f"stopped recording: {_one_line(error)}")
        if self._settings.trial:  # whatever it trains from here on is useless
            raise SystemExit(1)

    def _end_live(self) -> None:
        self._notes.live = False
        if self._live is not None:
            self._live.close()

    def _retire(self) -> None:
        self._closed = True
        self._end_live()
        self._window.mode = StepMode.DONE
        if not (self._settings.trial or self._baseline.has_begun):  # otherwise nothing may be saved until the end
            self._stop_listening()
        if self._between_backward_passes():
            self._notes.begin_step(StepMode.DONE)

    def _warn(self, message: str) -> None:
        with suppress(Exception):  # stderr may be closed, or its disk full
            sys.stderr.write(f"ddpprof: rank {self._job.rank}: {message}\n")

    def _warn_for_all(self, message: str) -> None:
        if self._job.rank == 0:
            self._warn(message)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _any_optimizer_alive() -> bool:
    """Return whether there is an optimizer. `isinstance` would ask for ``__class__``, to which some objects warn."""
    return any(issubclass(type(thing), torch.optim.Optimizer) for thing in gc.get_objects())
