"""Control the recording of one training process: bind listeners in each step, and open and complete the files.

Any problem is reported once on stderr, and training continues.
"""

from __future__ import annotations

import functools
import gc
import os
import pkgutil
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns, pthread_getcpuclockid
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ddpprof.record
from ddpprof import rundir
from ddpprof.errors import DdpprofError
from ddpprof.model import DETAILED_MODES, StepMode, UnusualCollective
from ddpprof.model.json_files import CaptureRequest
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.ranks_and_steps import options_for
from ddpprof.record import patches
from ddpprof.record.captures import Captures
from ddpprof.record.ddp_construction import ddp_modules, known_to_ddp
from ddpprof.record.events import EVENTS, Listener, binding
from ddpprof.record.job import CrashFile, JobRank, how_it_ends, where_it_ends
from ddpprof.record.launch import is_first_rank
from ddpprof.record.machine import PATIENCE_S, STANDBY
from ddpprof.record.optimizer_hooks import hook_optimizers
from ddpprof.record.overdue_facts import collectives, place_of, unusual_collective
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.pulse_keeper import FirstSteps, RunningPulse
from ddpprof.record.settings import Settings
from ddpprof.record.step_notes import LossNotes, StepNotes
from ddpprof.record.steps import StepDetector
from ddpprof.record.window import Baseline, Graphs, Window

_OTHER_PACKAGES = ("ddpprof.model", "ddpprof.monitor")
_COMPILED = "optimizer_hooks"
"""the only module of this package whose code torch.compile may compile"""
_ONLY_RECORDED = ("pre_forward_begins", "batch_comes")
"""events that `Feeding` needs only in recorded steps, and in steps that may become recorded steps"""
_MOST_TO_ALLOCATE = 3
"""number of optimizer steps that a script may take before its first DDP forward pass, as some scripts do to allocate
memory
"""
_STEPS_TO_PEAK = 10
"""number of initial steps in which ddpprof determines the part of the step in which memory peaks, unless they are
recorded
"""
_COMPARED_STEPS = 50
_OPEN_S = 3.0
"""maximum time in seconds for which a failed rank delays its exit in order to write how it failed"""
_NEVER_CALLED = (
    "the script constructed a DistributedDataParallel module but never called it, so DDP averaged no gradients. "
    "Compute the loss from model(…), not from model.module(…)."
)
_ENDS = {"finished": Ended.FINISHED, "interrupted": Ended.INTERRUPTED}


class Early(NamedTuple):
    """What a rank has begun before it has constructed a DDP module."""

    job: JobRank
    notes: StepNotes
    first_steps: FirstSteps

    @classmethod
    def watching(cls, settings: Settings, thread: int, clock: int) -> Early:
        """Watch a thread that may train later. `clock`: ID of its CPU clock. Raises ``OSError`` and ``ValueError``."""
        job, notes = JobRank(settings), StepNotes()
        return cls(job, notes, FirstSteps(job, notes, thread, clock))

    def end(self, error: BaseException | None) -> None:
        """End the watching of a process that has constructed no DDP module. `error`: what ends the process, if any."""
        if self.job.in_this_process():
            self.first_steps.end(_ENDS.get(how_it_ends(error), Ended.FAILED), process_exits=True)


class Session(Listener):
    """One recording, from the first DDP module to the end of training. As a listener, it handles rare events."""

    def __init__(self, settings: Settings, early: Early | None = None) -> None:
        """Prepare the recording. `early`: what the rank has begun before, if it has."""
        self._settings = settings
        self.finder = StepDetector(_any_optimizer_alive)
        self.notes = StepNotes() if early is None else early.notes
        self.baseline = Baseline()
        self.graphs = Graphs(self.notes.device)
        self.job = JobRank(settings) if early is None else early.job
        self.window = Window(settings, self.job, self.notes)
        self._losses = LossNotes() if settings.losses else None
        self._recorded, self._watched = RecordedSteps(self), WatchedSteps(self)
        self._listens = False
        self._bindings: dict[tuple[object, ...], dict[str, Any]] = {}
        """state of the session → bound listeners for this state"""
        self._handles: list[Any] = []
        self._first_steps = None if early is None else early.first_steps
        """preliminary pulse, before the pulse begins"""
        self._pulse: RunningPulse | None = None
        self._main_window: Window | None = None
        """during a capture, the window of the job's first recorded steps; the capture uses a separate window"""
        self._crash = CrashFile()
        self._closed = False
        self.process_exits = False
        """whether the recording ends because the process exits"""
        self._not_saving: set[str] = set()
        """names of framework classes for which ddpprof has already reported that it does not save their checkpoints"""

    def begin(self) -> None:
        """Start listening to training events."""
        keep_out_of_compiled_graphs()
        STANDBY.prepare()
        self.notes.environment.look_who_calls()
        patches.install_around_training()
        if self._settings.trial or self._settings.baseline_steps:
            patches.wrap_framework_saves()
        self._handles = hook_optimizers()
        EVENTS.training_thread = None
        if self._has_pulse and self._first_steps is None:
            with suppress(OSError, ValueError):  # `_begin_pulse` reports the reason
                me = get_ident()
                self._first_steps = FirstSteps(self.job, self.notes, me, pthread_getcpuclockid(me))
        self._listens = True
        self._bind()

    @property
    def _has_pulse(self) -> bool:
        return self._settings.pulse and not self._settings.trial

    def _bind(self) -> None:
        """Bind the listeners for the current state of the session."""
        if not self._listens:
            return
        if self._pulse is not None:
            self._pulse.writer.reads_losses = not self.window.profiler.running
        is_watched = self.is_over and not self.window.stopping
        begins = self.window.mode is StepMode.SKIP and self.window.step < _STEPS_TO_PEAK
        situation = (self.window.mode, begins, is_watched, self._pulse, self.job.files, self.baseline.has_begun)
        if situation not in self._bindings:
            self._bindings[situation] = self._watching() if is_watched else self._recording(begins)
        EVENTS.bind(self._bindings[situation])

    def _progress(self) -> list[Listener]:
        """Return the listeners that report the progress of training to other processes."""
        pulse = self._pulse or self._first_steps
        if pulse is not None:
            return [pulse.writer]
        return [] if self.job.files is None else [self.job.files.last_step]

    def _watching(self) -> dict[str, Any]:
        notes = self.notes
        listeners = (self._watched, *self._progress(), notes.feeding, notes.environment, self.graphs, self)
        return binding(listeners, self.give_up, without=_ONLY_RECORDED)

    def _recording(self, begins: bool) -> dict[str, Any]:
        notes, is_baseline = self.notes, self.window.mode in (StepMode.BASELINE, StepMode.ALONE)
        listeners: list[Listener] = [notes.unaveraged]
        if self.window.mode in DETAILED_MODES:
            listeners += [notes, notes.rpc]
        if begins:
            listeners.append(notes.peaks)
        # A step ends after its optimizer step has been recorded, and before the next activity begins.
        listeners += [self._recorded, *self._progress()]
        if self._losses is not None and not (is_baseline or self.baseline.has_begun):
            listeners.append(self._losses)
        listeners += [notes.feeding, notes.environment, self.graphs, self]
        if is_baseline:
            listeners.append(self.baseline)
        return binding(listeners, self.give_up)

    def _stop_listening(self) -> None:
        if self._listens:
            self._listens = False
            EVENTS.unbind()

    @property
    def is_over(self) -> bool:
        """Whether the recording has ended and later events are ignored."""
        return self.window.mode is StepMode.DONE

    def attach(self, ddp: DistributedDataParallel) -> None:
        """Begin recording, at the first forward pass of a DDP module."""
        self.notes.environment.describe(ddp)
        self.notes.module(ddp)
        self._begin_training(functools.partial(self.job.attach, ddp.process_group))

    def attach_alone(self) -> None:
        """Begin recording, at the first forward pass of an `nn.DataParallel`. This process is the whole job."""
        if self._settings.baseline_steps or self._settings.alone_steps:
            raise DdpprofError("--baseline-steps needs DistributedDataParallel, but the script uses DataParallel.")
        self._begin_training(self.job.attach_alone)

    def _begin_training(self, attach: Callable[[], None]) -> None:
        EVENTS.training_thread = get_ident()
        if self._first_steps is not None:
            self._first_steps.writer.trains_in(get_ident(), pthread_getcpuclockid(get_ident()))
        attach()
        self.window.begin()

    @property
    def trains_in_main_thread(self) -> bool:
        return EVENTS.training_thread == threading.main_thread().ident

    def end_step(self) -> None:
        """End a step, and begin the next one."""
        if self.notes.device.is_captured:
            self._recorded.step_is_over = True
            return
        self.graphs.end_step()
        self.window.end_step()
        EVENTS.step_ends(self.window.step)
        before, began_ns = self.window.mode, perf_counter_ns()
        if self.window.is_to_open:
            self._open_files()
        self.window.begin_step()
        self._look_for_capture()
        self._bind()
        if self.window.mode is not before:
            self.window.pauses.append((began_ns, perf_counter_ns()))
        if self.window.stopping and threading.current_thread() is threading.main_thread():
            raise SystemExit(0)

    def count_step(self) -> None:
        """Count a step that is not recorded in detail."""
        self.window.count_step()
        EVENTS.step_ends(self.window.step)
        if self._pulse is not None and self._pulse.captures.request is not None:
            self._look_for_capture()

    def _open_files(self) -> None:
        """Open the files after the last skipped step. If the ranks do not agree, nothing is recorded."""
        is_pulse_to_begin = self.job.files is None
        if not self.job.open_files(self.notes.device):
            self._retire()
            return
        if is_pulse_to_begin and self.job.files is not None:
            self._crash.open(self.job.files.directory / rundir.crash_file(self.job.rank))
        if self._settings.profiler and not self.job.everyone_records:
            self.window.do_without_profiler(
                "some ranks of this DDP module run without ddpprof, so profiling would slow down only the other ranks"
            )
        self.window.write_facts(None)
        if is_pulse_to_begin and self._has_pulse:
            self._begin_pulse()

    def _begin_pulse(self) -> None:
        """Start the pulse, which records every step. If this fails, print the reason."""
        thread = EVENTS.training_thread or get_ident()
        num_passes = 0 if self._first_steps is None else self._first_steps.writer.num_passes
        self._end_first_steps()
        try:
            self._pulse = RunningPulse(self.job, self._settings, self.notes, self.window.step, thread, num_passes)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self.job.warn_for_all(f"cannot record what ranks do after the recorded steps: {why}. Training continues.")

    def _end_first_steps(self, ended: Ended = Ended.NOT_YET) -> None:
        first_steps, self._first_steps = self._first_steps, None
        if first_steps is not None:
            self._bindings.clear()
            self._bind()
            first_steps.end(ended, self.process_exits)

    def _end_pulse(self, ended: Ended) -> None:
        self._end_first_steps(ended)
        running, self._pulse = self._pulse, None
        if running is not None:
            self._bindings.clear()  # they hold references to the pulse
            self._bind()
            running.end(ended, self.process_exits)

    def _look_for_capture(self) -> None:
        """Between two steps, begin the capture that all ranks have agreed on, or end the current capture."""
        captures, window = None if self._pulse is None else self._pulse.captures, self.window
        if captures is None or captures.request is None or window.mode is not StepMode.DONE or window.stopping:
            return
        if self._main_window is not None:
            self._leave_capture(self._main_window)
            captures.is_over(window)
            return
        self.notes.device.comes_to_rest(PATIENCE_S)
        if captures.begins_with(window.step):
            self._begin_capture(captures, captures.request)

    def _begin_capture(self, captures: Captures, request: CaptureRequest) -> None:
        settings = self._settings.to_capture(request, captures.folder, self.window.step)
        window = Window(settings, self.job.for_capture(captures.folder), self.notes)
        window.step = self.window.step
        self.notes.reopen()
        window.begin()
        self._main_window, self.window = self.window, window
        window.begin_step()
        self._bind()

    def _leave_capture(self, main_window: Window) -> None:
        main_window.step = self.window.step
        self.window, self._main_window = main_window, None

    def forward_fails(self, ddp: DistributedDataParallel, error: BaseException) -> None:
        """Record which parameters had no gradient, if torch's error is about missing gradients."""
        complaint = str(error)
        if "Expected to have finished reduction" in complaint:
            if self.is_over:
                self.notes.reopen()
            self.notes.module(ddp).note_unreduced(complaint)
            self._open_files()
            self._bind()

    def loader_begins(self, loader: Any) -> None:
        if get_ident() == EVENTS.training_thread:
            EVENTS.flagged(StepFlag.BEGAN_EPOCH | (StepFlag.EVALUATED if self.notes.pass_begins() else 0))

    def profiler_starts(self, inner: Any) -> None:
        """Stop ddpprof's profiler if the script starts its own profiler."""
        profiler = self.window.profiler
        if profiler.owns(inner):
            return
        profiler.another_prepares(inner)
        if not self._settings.trial:
            self.window.cut_short("the script starts its own profiler")
        if profiler.running:  # in steps that cannot be used without ddpprof's profiler
            profiler.stop()
            raise DdpprofError("the script started its own profiler during the profiled steps")

    def graph_replays(self, graph: Any) -> None:
        is_captured = self.notes.device.is_captured
        if self.graphs.hide_steps and not is_captured and get_ident() == EVENTS.training_thread:
            self.window.cut_short(
                "the script replays a CUDA graph of whole steps, and ddpprof cannot detect where these steps end"
            )

    def discards_file(self, target: Any) -> bool:
        """Return True if a save to a path is discarded.

        Saves to a buffer or an open file are not discarded, because the file would remain empty.
        """
        why = self._why_nothing_is_saved()
        if why is None or not isinstance(target, str | os.PathLike):
            return False
        self._say_not_saved(f"{target}: {why}", self.job.warn)
        patches.leave_unwritten(target)
        return True

    def discards_checkpoint(self, owner: str) -> bool:
        why = self._why_nothing_is_saved()
        if why is not None and owner not in self._not_saving:
            self._not_saving.add(owner)
            self._say_not_saved(f"checkpoints of {owner}: {why}", self.job.warn_for_all)
        return why is not None

    def discards_checkpoints(self) -> bool:
        return self._why_nothing_is_saved() is not None

    def _why_nothing_is_saved(self) -> str | None:
        if self._settings.trial and (self.window.step or self._closed):
            return "this is a trial"
        if self.baseline.has_begun:
            return "the steps after the profiled steps ran without gradient communication"
        return None

    def _say_not_saved(self, what: str, warn: Callable[[str], None]) -> None:
        if not (self._settings.trial and self._closed):  # otherwise, the trial has already reported why it ends
            warn(f"not saved: {what}.")

    @property
    def run_to_tell_of(self) -> Path | None:
        """The run directory, if there is one and this rank reports it to the user."""
        files = self.job.files
        return files.directory if files is not None and self.job.leads else None

    def close(self, error: BaseException | None) -> None:
        """Write all data recorded so far. `error`: the exception that ends training, if any."""
        if not self.job.in_this_process():
            return
        try:
            self._close(error)
        except Exception as problem:
            self.give_up(problem)

    def _close(self, error: BaseException | None) -> None:
        ended, pulse = how_it_ends(error), self._pulse
        for window in (self.window, self._main_window):
            if window is not None:
                window.end_place = where_it_ends(error)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._end_pulse(_ENDS.get(ended, Ended.FAILED))
        if between_backward_passes():  # code after a `with` block trains without ddpprof
            self.notes.begin_step(StepMode.DONE)
        if self._closed:
            self._crash.close()
            return
        self._closed = True
        self._stop_listening()
        if ended.startswith("failed"):
            self._open_after_failure()
        if self._main_window is not None:  # the training ended within a capture
            self.window.close(ended)
            self._leave_capture(self._main_window)
        self.window.close(ended)
        self._crash.close()
        if ended == "finished" and self.job.files is None and not self._settings.trial:
            self._say_why_nothing_is_recorded()
        if self._losses is not None and self.job.files is not None and self.notes.device.comes_to_rest(PATIENCE_S):
            rundir.write_json(self.job.files.directory / rundir.losses_file(self.job.rank), self._losses.values())
        if pulse is not None and ended.startswith("failed: RuntimeError"):  # as errors of gloo are
            self._add_unusual_collective(ended, pulse.writer)

    def _open_after_failure(self) -> None:
        """Open the files of a rank that failed before any step was recorded, to write how it failed."""
        if self.job.files is None and not self._settings.trial:
            with suppress(Exception):  # other ranks may have exited, and the store may not respond for minutes
                STANDBY.run(self._attach_and_open).result(_OPEN_S)

    def _attach_and_open(self) -> None:
        if not self.job.attached:
            group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
            if group is None:
                return
            self.notes.environment.describe_group(group)
            self.job.attach(group)
        self.job.open_files(None)

    def _add_unusual_collective(self, ended: str, pulse: PulseWriter) -> None:
        """Add the unusual collective to the facts.

        The other facts are written first, because finding the collective takes a second and the launcher may end the
        process in the meantime.
        """
        found = unusual_collective(collectives(of_nccl=False), pulse.step_starts_ns(_COMPARED_STEPS))
        if found is not None:
            self.window.unusual_collective = UnusualCollective(found.name, found.numel, place_of(found))
            self.window.write_facts(ended, at_ns=self.window.ended_ns)

    def _say_why_nothing_is_recorded(self) -> None:
        if self.job.attached and self.window.step:
            self.job.warn_for_all(self._too_short())
        elif not self.job.attached and self._recorded.had_backward and is_first_rank() and ddp_modules():
            self.job.warn(_NEVER_CALLED)

    def _too_short(self) -> str:
        num_steps, num_skipped, num_replays = self.window.step, self.window.num_skipped, self.graphs.num_replays
        took = f"training ran for {num_steps} step{'s' if num_steps != 1 else ''}"
        if num_replays > num_steps:
            return (
                f"{took} and replayed CUDA graphs {num_replays} times. ddpprof cannot detect steps within a CUDA graph."
            )
        options = options_for(num_steps, self.notes.device.is_accelerator)
        instead = "make it run more steps" if options is None else f"to record these steps, use ddpprof trace {options}"
        return f"{took}, but the first {num_skipped} steps are not recorded: {instead}."

    def give_up(self, error: Exception) -> None:
        """End the recording because of `error`. Training continues, unless this is a trial."""
        what = "Recording" if self._pulse is None else "Recording and watching"
        self.job.warn(f"{_one_line(error)} {what} stopped{'' if self._settings.trial else '; training continues'}.")
        self._retire()
        ended = f"stopped recording: {_one_line(error)}"
        with suppress(Exception):  # the error was already reported, and training must continue
            self.window.give_up()
        is_capture = self._main_window is not None
        self._write_last_facts(ended, without_modules=not is_capture)
        if self._main_window is not None:
            self._leave_capture(self._main_window)
            self._write_last_facts(ended, without_modules=False)
        if self._settings.trial:  # further training steps would be useless
            raise SystemExit(1)

    def _write_last_facts(self, ended: str, without_modules: bool) -> None:
        """Write the facts about the rank, and how the recording ended.

        If this fails and `without_modules` is set, try again without the facts about modules.
        """
        try:
            self.window.write_facts(ended)
        except Exception:
            if not without_modules:
                return
            self.notes.forget_modules()
            with suppress(Exception):  # the error was already reported
                self.window.write_facts(ended)

    def _retire(self) -> None:
        self._closed = True
        self._end_pulse(Ended.UNWATCHED)
        self.window.mode = StepMode.DONE
        if not (self._settings.trial or self.baseline.has_begun):  # otherwise, saves are still discarded
            self._stop_listening()
        self._bind()
        if between_backward_passes():
            self.notes.begin_step(StepMode.DONE)


class RecordedSteps(Listener):
    """Detects the ends of recorded steps and of the steps before them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.step_is_over = False
        """whether a step has ended but cannot be closed yet, because a backward pass or the capture of a CUDA graph is
        running
        """
        self.had_backward = False
        self._not_of_ddp: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """optimizers without parameters of any DDP module → number of DDP modules at the time of the check"""
        self._steps_without_forward = 0
        """number of steps that optimizers of DDP modules took before the first DDP forward pass"""

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        session = self._session
        if session.window.stopping:
            raise SystemExit(0)
        if not torch.is_grad_enabled():
            EVENTS.flagged(StepFlag.EVALUATED)
            EVENTS.begins(Activity.EVALUATION)
            return
        if not session.job.attached:
            session.attach(ddp)
        if session.job.alone:
            raise DdpprofError("the script trained with DataParallel before DistributedDataParallel.")
        session.notes.module(ddp)
        self._end_step_that_is_over()
        if session.finder.forward_begins(id(ddp), ddp.require_backward_grad_sync):
            session.end_step()
        EVENTS.begins(Activity.FORWARD)

    def data_parallel_forward_begins(self, model: torch.nn.DataParallel[Any]) -> None:
        session = self._session
        if session.window.stopping:
            raise SystemExit(0)
        if not _is_whole_job():
            return
        if not session.job.attached:
            session.attach_alone()
        session.notes.data_parallel_module(model)
        self._end_step_that_is_over()
        if session.finder.forward_begins(id(model), synchronizes=True):
            session.end_step()
        session.notes.feeding.pre_forward_begins(model, (), {})

    def backward_begins(self, loss: Any) -> None:
        self.had_backward = True

    def optimizer_ends(self, optimizer: Any) -> None:
        EVENTS.begins(Activity.OTHER)
        self.optimizer_skipped(optimizer)

    def optimizer_skipped(self, optimizer: Any) -> None:
        session = self._session
        if not session.job.attached:
            self._trains_without_forward(optimizer)
        session.notes.optimizer = weakref.ref(optimizer)
        if session.job.attached and session.finder.optimizer_stepped(id(optimizer)):
            if between_backward_passes():
                session.end_step()
            else:
                self.step_is_over = True

    def _trains_without_forward(self, optimizer: Any) -> None:
        """Begin the recording if a DDP module's optimizer has taken several steps without any DDP forward pass.

        Only steps after a backward pass count. A script may take a few steps to allocate memory before training.
        """
        modules, session = ddp_modules(), self._session
        if not self.had_backward or self._not_of_ddp.get(optimizer) == len(modules):
            return
        optimized = {id(one) for group in optimizer.param_groups for one in group["params"]}
        ddp = next((ddp for ddp in modules if not optimized.isdisjoint(known_to_ddp([ddp]))), None)
        if ddp is None:
            self._not_of_ddp[optimizer] = len(modules)
            return
        self._steps_without_forward += 1
        if self._steps_without_forward > max(_MOST_TO_ALLOCATE, session.window.num_skipped):
            session.attach(ddp)
            session.window.without_common_steps()
            session.finder.steps_without_forward()

    def fetch_begins(self) -> None:
        self._end_step_that_is_over()

    def step_marked(self) -> None:
        self._end_step_that_is_over()
        if self._session.finder.step_marked():
            self._session.end_step()

    def _end_step_that_is_over(self) -> None:
        if self.step_is_over and get_ident() == EVENTS.training_thread:
            self.step_is_over = False
            self._session.end_step()


class WatchedSteps(Listener):
    """Counts steps that are not recorded.

    Code that runs once per step is not in the CPU caches, so every call costs time. Therefore, errors are handled here.
    """

    may_raise = False

    def __init__(self, session: Session) -> None:
        self._session, self._finder = session, session.finder

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        try:
            if not torch.is_grad_enabled():
                EVENTS.flagged(StepFlag.EVALUATED)
                EVENTS.begins(_EVALUATION)
                return
            if self._finder.forward_begins(id(ddp), ddp.require_backward_grad_sync):
                self._session.count_step()
            EVENTS.begins(_FORWARD)
        except Exception as error:
            self._session.give_up(error)

    def optimizer_ends(self, optimizer: Any) -> None:
        try:
            if self._finder.optimizer_stepped(id(optimizer)):
                self._session.count_step()
            else:
                EVENTS.begins(_OTHER)
        except Exception as error:
            self._session.give_up(error)

    optimizer_skipped = optimizer_ends

    def data_parallel_forward_begins(self, model: torch.nn.DataParallel[Any]) -> None:
        try:
            if _is_whole_job() and self._finder.forward_begins(id(model), synchronizes=True):
                self._session.count_step()
        except Exception as error:
            self._session.give_up(error)

    def step_marked(self) -> None:
        try:
            if self._finder.step_marked():
                self._session.count_step()
        except Exception as error:
            self._session.give_up(error)


_OTHER, _FORWARD, _EVALUATION = int(Activity.OTHER), int(Activity.FORWARD), int(Activity.EVALUATION)


def between_backward_passes() -> bool:
    """Return True if the reducer may be accessed. During a backward pass, the reducer holds its own lock."""
    return get_ident() == EVENTS.training_thread and torch._C._current_graph_task_id() == -1


def _is_whole_job() -> bool:
    """Return True if an `nn.DataParallel` trains in a job without a process group."""
    return torch.is_grad_enabled() and not (dist.is_available() and dist.is_initialized())


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _any_optimizer_alive() -> bool:
    """Return True if an optimizer exists.

    `isinstance` would access ``__class__``, which makes some objects print warnings.
    """
    return any(issubclass(type(thing), torch.optim.Optimizer) for thing in gc.get_objects())


@functools.cache
def keep_out_of_compiled_graphs() -> None:
    """Exclude ddpprof's own code that runs during training from torch.compile, but not the functions that it calls."""
    import torch._dynamo.trace_rules as rules

    own = (module.name for module in pkgutil.iter_modules(ddpprof.record.__path__) if module.name != _COMPILED)
    for name in (*(f"ddpprof.record.{name}" for name in own), *_OTHER_PACKAGES):
        rules.add(name)
