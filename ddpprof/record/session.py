"""What happens in one training process, from its first DDP forward to its end.

Events come from `patches`; the session finds the steps, switches between the modes of the schedule, and writes.
Whatever goes wrong in here is said once on stderr, and training goes on.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpprof import rundir
from ddpprof.errors import DdpprofError
from ddpprof.record import output, patches
from ddpprof.record.agreement import Agreement
from ddpprof.record.buckets import timed_hook
from ddpprof.record.modules import RecordedModule
from ddpprof.record.profiler import StepProfiler
from ddpprof.record.schedule import Mode, Schedule
from ddpprof.record.settings import Settings
from ddpprof.record.signals import deferred_signals
from ddpprof.record.steps import StepFinder
from ddpprof.record.surroundings import Surroundings

_P = ParamSpec("_P")
_session_numbers = iter(range(1 << 30))
_RECORDING = (Mode.LIGHT, Mode.PROFILED)


def _harmless(method: Callable[_P, None]) -> Callable[_P, None]:
    """An error inside ddpprof ends the recording, not the training."""

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

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._schedule = Schedule(settings)
        self._finder = StepFinder(_any_optimizer_alive)
        self._profiler = StepProfiler(settings)
        self._surroundings = Surroundings()
        self._modules: list[RecordedModule] = []
        self._agreement: Agreement | None = None
        self._files: output.RankFiles | None = None
        self._run_id = ""
        self._number = next(_session_numbers)
        self._rank = 0
        self._world_size = 1
        self._owner = os.getpid()
        self._handles: list[Any] = []
        self._training_thread = 0
        self._step_is_over = False
        self._stopping = False
        self.closed = False

        self._step = 0
        self._mode = Mode.SKIP
        self._step_start_ns: int | None = None
        self._forwards: list[list[Any]] = []
        self._optimizers: list[list[int]] = []
        self._optimizer_start_ns = 0

    # ---- called by patches, on the training thread -------------------------------------------------------------

    @_harmless
    def ddp_forward_begins(self, ddp: DistributedDataParallel) -> None:
        """Before the profiler's mark of the forward, so that a step that begins here holds the whole of it."""
        if self._stopping:
            raise SystemExit(0)
        if not torch.is_grad_enabled():
            return
        module = self._module(ddp)
        self._end_step_that_is_over()
        if self._finder.forward_begins(module.index, ddp.require_backward_grad_sync):
            self._end_step()

    def ddp_pre_forward(self, original: Callable[..., Any], ddp: Any, inputs: Any, kwargs: Any) -> Any:
        if self._mode not in _RECORDING:
            return self._checked(original, ddp, inputs, kwargs)
        module = self._module(ddp)
        start = time.time_ns()
        module.buffer_sync_ns = 0
        had_rebuilt = ddp._has_rebuilt_buckets
        result = self._checked(original, ddp, inputs, kwargs)
        end = time.time_ns()
        rebuild_ns = 0 if had_rebuilt or not ddp._has_rebuilt_buckets else end - start - module.buffer_sync_ns
        module.open_forwards.append([module.index, start, end, 0, 0, module.buffer_sync_ns, rebuild_ns, False])
        return result

    def ddp_post_forward(self, original: Callable[..., Any], ddp: Any, output: Any) -> Any:
        inner_end = time.time_ns()
        result = original(ddp, output)
        self._after_forward(ddp, inner_end)
        return result

    def ddp_sync_buffers(self, original: Callable[..., Any], ddp: Any) -> Any:
        if self._mode not in _RECORDING:
            return original(ddp)
        began = time.time_ns()
        result = original(ddp)
        self._module(ddp).buffer_sync_ns += time.time_ns() - began
        return result

    def wrap_comm_hook(self, ddp: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isroutine(hook) or ddp.device_type != "cpu":
            return hook
        return timed_hook(hook, lambda: self._times_of(ddp))

    @_harmless
    def optimizer_begins(self, _optimizer: Any) -> None:
        if self._mode in _RECORDING:
            self._optimizer_start_ns = time.time_ns()

    @_harmless
    def optimizer_ends(self, optimizer: Any) -> None:
        if self._mode in _RECORDING:
            self._optimizers.append([self._optimizer_start_ns, time.time_ns()])
        if self._modules and self._finder.optimizer_stepped(id(optimizer)):
            if self._between_backward_passes():
                self._end_step()
            else:
                self._step_is_over = True

    @_harmless
    def loader_begins(self, loader: Any) -> None:
        self._surroundings.loader_begins(loader)

    def loader_fetches(self, original: Callable[..., Any], iterator: Any) -> Any:
        if self._mode is Mode.DONE:
            return original(iterator)
        self._end_step_that_is_over()
        began = time.time_ns()
        try:
            return original(iterator)
        finally:
            self._surroundings.fetches(iterator, time.time_ns() - began)

    @_harmless
    def saves(self, target: Any) -> None:
        self._surroundings.saves(target)

    @_harmless
    def another_profiler_starts(self, inner: Any) -> None:
        if self._profiler.running and not self._profiler.owns(inner):
            self._profiler.stop(None)
            raise DdpprofError("the script started a profiler of its own in the profiled steps")

    @_harmless
    def explicit_step(self) -> None:
        """The user says that a step ended."""
        self._end_step_that_is_over()
        if self._finder.step_marked():
            self._end_step()

    # ---- forwards ------------------------------------------------------------------------------------------------

    @_harmless
    def _end_step_that_is_over(self) -> None:
        if self._step_is_over and threading.get_ident() == self._training_thread:
            self._step_is_over = False
            self._end_step()

    def _checked(self, original: Callable[..., Any], ddp: Any, inputs: Any, kwargs: Any) -> Any:
        """DDP complains at a forward about gradients that never came in the backward before: note their names."""
        try:
            return original(ddp, *inputs, **kwargs)
        except RuntimeError as error:
            if "Expected to have finished reduction" in str(error):
                self._note_unreduced(ddp, str(error))
            raise

    @_harmless
    def _note_unreduced(self, ddp: DistributedDataParallel, complaint: str) -> None:
        self._module(ddp).note_unreduced(complaint)
        self._open_files()

    @_harmless
    def _after_forward(self, ddp: DistributedDataParallel, inner_end: int) -> None:
        module = self._find(ddp)
        if module is None or not module.open_forwards:
            return
        forward = module.open_forwards.pop()
        synchronises = torch.is_grad_enabled() and ddp.require_backward_grad_sync
        forward[3:5] = [inner_end, time.time_ns()]
        forward[7] = synchronises
        self._forwards.append(forward)
        if synchronises:
            module.begin_backward(inner_end)

    def _find(self, ddp: Any) -> RecordedModule | None:
        for module in self._modules:
            if module.ddp is ddp:
                return module
        return None

    def _module(self, ddp: DistributedDataParallel) -> RecordedModule:
        module = self._find(ddp)
        if module is None:
            if not self._modules:
                self._attach(ddp)
            module = RecordedModule(ddp, len(self._modules))
            self._modules.append(module)
        return module

    def _times_of(self, ddp: Any) -> Any:
        module = self._find(ddp)
        return module.times if module is not None else None

    def _attach(self, ddp: DistributedDataParallel) -> None:
        """At the first forward: the process group exists, and no backward has run."""
        _keep_out_of_compiled_graphs()
        self._training_thread = threading.get_ident()
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._surroundings.describe(ddp)
        store = dist.distributed_c10d._get_default_store()
        self._agreement = Agreement(store, self._world_size, self._number)
        if self._rank == 0:
            self._agreement.offer(*self._open_run())
        self._agreement.join()
        self._step_start_ns = time.time_ns()

    def _open_run(self) -> tuple[str | None, str, str | None]:
        run_id = uuid.uuid4().hex
        try:
            return str(output.open_run(self._settings, run_id, self._world_size)), run_id, None
        except (OSError, DdpprofError) as error:
            return None, run_id, str(error)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _end_step(self) -> None:
        mode, number = self._mode, self._step
        fields = self._describe_step(mode)
        self._profiler.end_step()
        end_ns = time.time_ns()
        if self._files is not None and mode in (Mode.OFF, *_RECORDING):
            assert self._step_start_ns is not None
            self._files.append_step(output.step_line(fields, self._step_start_ns, end_ns))
        self._forwards, self._optimizers = [], []
        self._surroundings.end_step(trained=any(module.synchronised for module in self._modules))
        self._step = number + 1
        if number == 0:
            self._open_files()
        if self._files is not None:
            self._enter(self._schedule.mode(self._step))
        self._step_start_ns = time.time_ns()
        if self._stopping and threading.current_thread() is threading.main_thread():
            raise SystemExit(0)

    def _describe_step(self, mode: Mode) -> dict[str, Any]:
        fields: dict[str, Any] = {"number": self._step, "mode": mode.value}
        if mode not in _RECORDING:
            return fields
        fields["data_ns"] = self._surroundings.data_ns
        fields["forwards"] = self._forwards
        fields["optimizers"] = self._optimizers
        fields["ready_ns"] = {str(module.index): module.ready_ns() for module in self._modules if module.synchronised}
        fields["buckets"] = [row for module in self._modules for row in module.bucket_rows()]
        fields["torch_stats"] = {str(m.index): times for m in self._modules if (times := m.torch_times())}
        if mode is Mode.PROFILED or self._step == self._schedule.num_steps - 1:
            for module in self._modules:
                module.look_for_unused()
        return fields

    def _open_files(self) -> None:
        """After the first step: the ranks agree, or nothing is recorded."""
        if self._agreement is None or self._files is not None:
            return
        verdict = self._agreement.verdict()
        if verdict.out is None and verdict.problem is not None and self._rank != 0:
            self._retire()  # rank 0 says it for all
            return
        if verdict.out is None:
            raise DdpprofError(verdict.problem or "rank 0 of this job runs without ddpprof")
        directory = Path(verdict.out)
        directory.mkdir(parents=True, exist_ok=True)
        self._run_id = verdict.run_id
        self._files = output.RankFiles(directory, self._rank)
        if not verdict.everyone:
            self._schedule.without_profiler()
            self._warn_for_all("not every rank runs under ddpprof: recording without the profiler")
        self._files.write_facts(self._facts(None))

    def _enter(self, mode: Mode) -> None:
        """Switch to the mode of the step that begins."""
        before, self._mode = self._mode, mode
        for module in self._modules:
            module.begin_step(light=mode is Mode.LIGHT, profiled=mode is Mode.PROFILED)
        if mode is Mode.WARMUP and before is not Mode.WARMUP:
            self._start_profiler()
        if mode is Mode.PROFILED:
            if not self._profiler.running:
                self._start_profiler()
            if self._mode is Mode.PROFILED:
                self._profiler.begin_step(self._step)
        if mode is Mode.DONE and before is not Mode.DONE:
            self._finish_window()

    def _start_profiler(self) -> None:
        try:
            self._profiler.prepare()
        except RuntimeError as error:
            self._warn_for_all(f"the profiler does not start ({error}): recording without it")
            self._schedule.without_profiler()
            self._mode = self._schedule.mode(self._step)

    def _finish_window(self) -> None:
        with deferred_signals():
            self._write_trace()
            assert self._files is not None
            self._files.write_facts(self._facts(None))
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stopping = self._settings.stop_after

    def _write_trace(self) -> None:
        if not self._profiler.running or self._files is None:
            return
        try:
            self._profiler.stop(self._files.trace_part)
            if self._files.trace_part.exists():
                self._files.keep_trace()
        finally:
            self._files.discard_part()

    # ---- the end -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Listen from now on."""
        patches.install_around_training()
        self._handles = patches.hook_optimizers()
        os.register_at_fork(after_in_child=self._forget)
        patches.activate(self)

    def _forget(self) -> None:
        """In a forked child (a DataLoader worker, say): the recording belongs to the parent."""
        if patches.active() is self:
            patches.activate(None)

    @_harmless
    def close(self, ended: str) -> None:
        """Write what there is. `ended` is ``"finished"`` or ``"failed: …"``."""
        if self.closed or os.getpid() != self._owner:
            return
        self.closed = True
        self._forget()
        for handle in self._handles:
            handle.remove()
        for module in self._modules:  # what follows a `with` block trains as if there had been none
            module.begin_step(light=False, profiled=False)
        if self._files is None:
            return
        with deferred_signals():
            self._write_trace()
            self._files.write_facts(self._facts("stopped" if self._stopping and ended == "finished" else ended))
            self._files.compress_trace()
            self._files.close()

    def give_up(self, error: Exception) -> None:
        """Recording ends here, training does not."""
        self._warn(f"{_one_line(error)} Recording stopped; training goes on.")
        self._retire()
        with suppress(Exception):  # it was said already, and training must go on
            self._profiler.stop(None)
        with suppress(Exception):
            if self._files is not None:
                self._files.write_facts(self._facts(f"stopped recording: {_one_line(error)}"))

    def _retire(self) -> None:
        self.closed = True
        self._mode = Mode.DONE
        self._forget()
        if self._between_backward_passes():
            for module in self._modules:
                module.begin_step(light=False, profiled=False)

    def _between_backward_passes(self) -> bool:
        """The reducer may be touched: it holds its lock during a backward pass, and waits for other threads there."""
        return threading.get_ident() == self._training_thread and torch._C._current_graph_task_id() == -1

    def _warn(self, message: str) -> None:
        sys.stderr.write(f"ddpprof: rank {self._rank}: {message}\n")

    def _warn_for_all(self, message: str) -> None:
        if self._rank == 0:
            self._warn(message)

    def _facts(self, ended: str | None) -> dict[str, Any]:
        local_rank = os.environ.get("LOCAL_RANK")
        return {
            "format": rundir.FORMAT,
            "run_id": self._run_id,
            "rank": self._rank,
            "world_size": self._world_size,
            "local_rank": int(local_rank) if local_rank is not None else None,
            "host": socket.gethostname(),
            "pid": self._owner,
            "torch": torch.__version__,
            "modules": [module.facts() for module in self._modules],
            "profiler_pause_ns": self._profiler.pause_ns or None,
            "ended": ended,
            **self._surroundings.facts(),
        }


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _any_optimizer_alive() -> bool:
    return any(isinstance(thing, torch.optim.Optimizer) for thing in gc.get_objects())


def _keep_out_of_compiled_graphs() -> None:
    """torch.compile runs these modules as they are. `patches` is left out: it takes care of itself."""
    import torch._dynamo.trace_rules as rules

    for name in ("session", "modules", "surroundings", "buckets", "steps", "profiler"):
        rules.add(f"ddpprof.record.{name}")
