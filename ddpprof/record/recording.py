"""The recording of one training process: its steps, its files and its end.

`Session` adds the events of torch that it is made of. Any problem in here is reported once on stderr, and training
goes on.
"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpprof import rundir
from ddpprof.model import StepMode, UnusualCollective
from ddpprof.model.capture import CaptureRequest
from ddpprof.model.pulse import Ended
from ddpprof.record import patches
from ddpprof.record.captures import Captures
from ddpprof.record.ddp_construction import ddp_modules
from ddpprof.record.job import CrashFile, JobRank, how_it_ends, where_it_ends
from ddpprof.record.launch import is_first_rank
from ddpprof.record.overdue_facts import collectives_of_gloo, place_of, unusual_collective
from ddpprof.record.pulse import NoPulse, PulseWriter
from ddpprof.record.pulse_keeper import RunningPulse
from ddpprof.record.settings import Settings
from ddpprof.record.step_notes import LossNotes, StepNotes
from ddpprof.record.steps import StepDetector
from ddpprof.record.waiting import PATIENCE_S, STANDBY
from ddpprof.record.watching import WatchedSteps
from ddpprof.record.window import Baseline, Graphs, Window
from ddpprof.step_options import options_for

_P = ParamSpec("_P")


def harmless(method: Callable[_P, None]) -> Callable[_P, None]:
    """Make an error inside ddpprof end the recording, not the training."""

    @functools.wraps(method)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            session = args[0]
            assert isinstance(session, Recording)
            session.give_up(error)

    return guarded


class Recording:
    """One recording in one process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.finder = StepDetector(_any_optimizer_alive)
        self._notes = StepNotes()
        self._baseline = Baseline()
        self.graphs = Graphs(self._notes.device)
        self._losses = LossNotes() if settings.losses else None
        self._job = JobRank(settings)
        self._window = Window(settings, self._job, self._notes)
        self._handles: list[Any] = []
        self._training_thread = 0
        self._step_is_over = False
        self.pulse: PulseWriter | NoPulse = NoPulse()
        self._running_pulse: RunningPulse | None = None
        self._captures: Captures | None = None
        self._main_window: Window | None = None
        """window of the first recorded steps, while a capture has its own"""
        self._crash = CrashFile()
        self._closed = False
        self.process_exits = False
        """whether the process exits, so that the end of the recording is that of the process"""
        self._had_backward = False
        self._not_of_ddp: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """optimizers that were seen to have no parameters of the DDP modules → number of these modules"""
        self._steps_without_forward = 0
        """number of steps of DDP modules' optimizers before the first forward of DDP"""
        self._not_saving: set[str] = set()
        """classes of frameworks that were already reported as not saving"""

    def _stop_listening(self) -> None:
        if patches.active() is self:
            patches.activate(None)

    @property
    def _is_over(self) -> bool:
        """Whether nothing that happens from now on counts."""
        return self._window.mode is StepMode.DONE

    def _attach(self, ddp: DistributedDataParallel) -> None:
        self._notes.environment.describe(ddp)
        self._notes.module(ddp)
        self._begin_training(functools.partial(self._job.attach, ddp.process_group))

    def _begin_training(self, attach: Callable[[], None]) -> None:
        self._training_thread = threading.get_ident()
        attach()
        self._window.begin()

    def _between_backward_passes(self) -> bool:
        """Return whether the reducer may be touched: in a backward pass it holds its lock and awaits other threads."""
        return threading.get_ident() == self._training_thread and torch._C._current_graph_task_id() == -1

    @harmless
    def _end_step_that_is_over(self) -> None:
        if self._step_is_over and threading.get_ident() == self._training_thread:
            self._step_is_over = False
            self._end_step()

    def count_step(self) -> None:
        """Count a step after the recorded ones, when only the progress of the training counts."""
        self._window.count_step()
        if self._captures is not None and self._captures.request is not None:
            self._look_for_capture()

    def _choose_step_events(self) -> None:
        """Choose who handles the events of every step from now on: this recording, or less code once it is over."""
        if patches.active() is not self:
            return
        is_watched = self._is_over and not self._window.stopping
        patches.send_step_events_to(WatchedSteps(self) if is_watched else None)

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
        self._look_for_capture()
        self._choose_step_events()
        if self._window.stopping and threading.current_thread() is threading.main_thread():
            raise SystemExit(0)

    def _open_files(self) -> None:
        """Open the files after the last skipped step: the ranks agree, or nothing is recorded."""
        is_pulse_to_begin = self._job.files is None
        if not self._job.open_files(self._notes.device):
            self._retire()
            return
        if is_pulse_to_begin and self._job.files is not None:
            self._crash.open(self._job.files.directory / rundir.crash_file(self._job.rank))
        if self._settings.profiler and not self._job.everyone_records:
            self._window.do_without_profiler(
                "not every rank with this DDP module runs under ddpprof, so the profiler would slow only some"
            )
        self._window.write_facts(None)
        if is_pulse_to_begin:
            self._begin_pulse()

    @harmless
    def loader_runs_out(self, iterator: Any) -> None:
        self._notes.feeding.runs_out(iterator)

    @harmless
    def ddp_forward_fails(self, ddp: DistributedDataParallel, error: Exception) -> None:
        """Note a forward without a backward pass, and which parameters had no gradient, if torch complains of that."""
        self.pulse.forward_fails(ddp)
        complaint = str(error)
        if "Expected to have finished reduction" not in complaint:
            return
        if self._window.mode is StepMode.DONE:
            self._notes.reopen()
        self._notes.module(ddp).note_unreduced(complaint)
        self._open_files()

    def _begin_pulse(self) -> None:
        """Begin to note what happens in every step, unless that is switched off or not possible."""
        job = self._job
        assert job.files is not None
        self.pulse = self._window.pulse = NoPulse(job.files.last_step)
        if self._settings.trial or not self._settings.pulse:
            return
        first_step, thread = self._window.step, self._training_thread
        try:
            running = RunningPulse(job, self._settings, self._notes, first_step, thread)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            job.warn_for_all(f"does not note what ranks do after the recorded steps: {why}. Training goes on.")
            return
        self._running_pulse, self._captures = running, running.captures
        self.pulse = self._window.pulse = running.writer

    def _look_for_capture(self) -> None:
        """Between two steps: begin a capture that all ranks have agreed on, or end one."""
        captures, window = self._captures, self._window
        if captures is None or captures.request is None or window.mode is not StepMode.DONE or window.stopping:
            return
        if self._main_window is not None:
            self._leave_capture(self._main_window)
            captures.is_over(window)
            return
        self._notes.device.comes_to_rest(PATIENCE_S)
        if captures.begins_with(window.step):
            self._begin_capture(captures, captures.request)

    def _begin_capture(self, captures: Captures, request: CaptureRequest) -> None:
        settings = self._settings.to_capture(request, captures.folder, self._window.step)
        job = self._job.for_capture(captures.folder)
        window = Window(settings, job, self._notes)
        window.step, window.pulse = self._window.step, self.pulse
        self._notes.reopen()
        window.begin()
        self._main_window, self._window = self._window, window
        window.begin_step()
        self._choose_step_events()

    def _leave_capture(self, main_window: Window) -> None:
        main_window.step = self._window.step
        self._window, self._main_window = main_window, None

    def _end_pulse(self, ended: Ended) -> None:
        running, self._running_pulse, self._captures = self._running_pulse, None, None
        self.pulse = self._window.pulse = NoPulse(None if self._job.files is None else self._job.files.last_step)
        if running is not None:
            running.end(ended, self.process_exits)

    @property
    def trains_in_main_thread(self) -> bool:
        return self._training_thread == threading.main_thread().ident

    @property
    def run_to_tell_of(self) -> Path | None:
        """The run directory, if there is one and this rank is the one to tell the user."""
        files = self._job.files
        return files.directory if files is not None and self._job.leads else None

    @harmless
    def close(self, error: BaseException | None) -> None:
        """Write what there is. `error`: what ends the training, if anything does."""
        if not self._job.in_this_process():
            return
        ended, pulse = how_it_ends(error), self.pulse
        for window in (self._window, self._main_window):
            if window is not None:
                window.end_place = where_it_ends(error)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._end_pulse(_ENDS.get(ended, Ended.FAILED))
        if self._between_backward_passes():  # code after a `with` block trains as if there had been none
            self._notes.begin_step(StepMode.DONE)
        if self._closed:
            self._crash.close()
            return
        self._closed = True
        self._stop_listening()
        if ended.startswith("failed"):
            self._open_after_failure()
        if self._main_window is not None:  # the training ended within a capture
            self._window.close(ended)
            self._leave_capture(self._main_window)
        self._window.close(ended)
        self._crash.close()
        if ended == "finished" and self._job.files is None and not self._settings.trial:
            self._say_why_nothing_is_recorded()
        if self._losses is not None and self._job.files is not None and self._notes.device.comes_to_rest(PATIENCE_S):
            self._job.files.write_losses(self._losses.values())
        if isinstance(pulse, PulseWriter) and ended.startswith("failed: RuntimeError"):  # as errors of gloo are
            self._add_unusual_collective(ended, pulse)

    def _open_after_failure(self) -> None:
        """Open the files of a rank that failed before any step was recorded, to write how it failed."""
        if self._job.files is None and not self._settings.trial:
            with suppress(Exception):  # the others may be gone already, and a store may not answer for minutes
                STANDBY.run(self._attach_and_open).result(_OPEN_S)

    def _attach_and_open(self) -> None:
        if not self._job.attached:
            group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
            if group is None:
                return
            self._notes.environment.describe_group(group)
            self._job.attach(group)
        self._job.open_files(None)

    def _add_unusual_collective(self, ended: str, pulse: PulseWriter) -> None:
        """Add to what is written already, since that takes a second, and a launcher may end the process meanwhile."""
        found = unusual_collective(collectives_of_gloo(), pulse.step_starts_ns(_COMPARED_STEPS))
        if found is not None:
            self._window.unusual_collective = UnusualCollective(found.name, found.numel, place_of(found))
            self._window.write_facts(ended, at_ns=self._window.ended_ns)

    def _say_why_nothing_is_recorded(self) -> None:
        if self._job.attached:
            self._job.warn_for_all(self._too_short())
        elif self._had_backward and is_first_rank() and ddp_modules():
            self._job.warn(_NEVER_CALLED)

    def _too_short(self) -> str:
        num_steps, num_skipped, num_replays = self._window.step, self._window.num_skipped, self.graphs.num_replays
        took = f"the training took {num_steps} step{'s' if num_steps != 1 else ''}"
        if num_replays > num_steps:
            return f"{took} and replayed CUDA graphs {num_replays} times: steps within a graph cannot be seen."
        options = options_for(num_steps, self._notes.device.is_accelerator)
        instead = "let it take more steps" if options is None else f"ddpprof trace {options} records what they show"
        return f"{took}, and the first {num_skipped} are not recorded: {instead}."

    def give_up(self, error: Exception) -> None:
        """End the recording here but not the training, unless it is a trial."""
        what = "Recording" if self._running_pulse is None else "Recording and watching"
        self._job.warn(f"{_one_line(error)} {what} stopped{'' if self._settings.trial else '; training goes on'}.")
        self._retire()
        ended = f"stopped recording: {_one_line(error)}"
        with suppress(Exception):  # the error was already reported, and training must go on
            self._window.give_up()
        is_capture = self._main_window is not None
        self._write_last_facts(ended, without_modules=not is_capture)
        if self._main_window is not None:
            self._leave_capture(self._main_window)
            self._write_last_facts(ended, without_modules=False)
        if self._settings.trial:  # whatever it trains from here on is useless
            raise SystemExit(1)

    def _write_last_facts(self, ended: str, without_modules: bool) -> None:
        """Write how the recording ended, if need be and permitted without what is known of the modules."""
        try:
            self._window.write_facts(ended)
        except Exception:
            if not without_modules:
                return
            self._notes.forget_modules()
            with suppress(Exception):  # the error was already reported
                self._window.write_facts(ended)

    def _retire(self) -> None:
        self._closed = True
        self._end_pulse(Ended.UNWATCHED)
        self._window.mode = StepMode.DONE
        if not (self._settings.trial or self._baseline.has_begun):  # otherwise nothing may be saved until the end
            self._stop_listening()
        self._choose_step_events()
        if self._between_backward_passes():
            self._notes.begin_step(StepMode.DONE)


_COMPARED_STEPS = 50
_OPEN_S = 3.0
"""most seconds by which a rank that has failed exits later, to write how it failed"""
_NEVER_CALLED = (
    "the script constructed a DistributedDataParallel module but never called it, so DDP averaged no gradients. "
    "Compute the loss from model(…), not from model.module(…)."
)
_ENDS = {"finished": Ended.FINISHED, "interrupted": Ended.INTERRUPTED}


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _any_optimizer_alive() -> bool:
    """Return whether there is an optimizer. `isinstance` would ask for ``__class__``, to which some objects warn."""
    return any(issubclass(type(thing), torch.optim.Optimizer) for thing in gc.get_objects())
