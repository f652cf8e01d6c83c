"""The recorded steps of one process: in which mode the current one is, the profiler over them, what is written of them.

`Session` says where steps end; here it is decided what that means.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ddpprof.record import ddp_variants
from ddpprof.record.job import Job
from ddpprof.record.live import LiveScalars
from ddpprof.record.notes import RECORDING, StepNotes
from ddpprof.record.profiler import StepProfiler
from ddpprof.record.schedule import Mode, Schedule
from ddpprof.record.settings import Settings
from ddpprof.signals import deferred_signals

_UNDER_THE_PROFILER = (Mode.PROFILED, Mode.BASELINE)
_TIMED = (Mode.OFF, Mode.WITHOUT_DDP)


class Window:
    def __init__(
        self,
        settings: Settings,
        job: Job,
        notes: StepNotes,
        warn_for_all: Callable[[str], None],
        live: LiveScalars | None = None,
    ) -> None:
        self._live = live
        self._settings = settings
        self._job = job
        self._notes = notes
        self._warn_for_all = warn_for_all
        self._schedule = Schedule(settings)
        self.profiler = StepProfiler(settings)
        self.mode = Mode.SKIP
        self.step = 0
        """number of the current one"""
        self.stopping = False
        """all is recorded, and the job is to end with that"""
        self._step_start_ns = 0

    def begin(self) -> None:
        """Training begins, with step 0."""
        self._step_start_ns = time.time_ns()

    def end_step(self) -> None:
        """What recording costs between two steps falls in one of them, but for the profiler's start and end."""
        end_ns = None
        self.profiler.end_step()
        if self.mode in _TIMED and self._schedule.mode(self.step + 1) is not self.mode:
            self._wait_for_device()
        if self._job.files is not None and self.mode in (Mode.OFF, Mode.WITHOUT_DDP, *RECORDING):
            end_ns = self._job.files.append_step(self._notes.fields(self.step, self.mode), self._step_start_ns)
        if self._live is not None:
            self._live.add(self._notes.times(self.step, self._step_start_ns, end_ns or time.time_ns()))
        self._notes.end_step()
        self.count_step()

    def count_step(self) -> None:
        """A step has ended."""
        self.step += 1
        if self._job.files is not None:
            self._job.files.last_step.ends(self.step)

    @property
    def is_to_open(self) -> bool:
        """The skipped steps are over."""
        return self.step == self._schedule.num_skipped

    def begin_step(self) -> None:
        """Switch to the mode of the step that begins."""
        if self._job.files is None:
            self._step_start_ns = time.time_ns()
            return
        if self.is_to_open:
            self._notes.recording_begins(self.step)
        before, self.mode = self.mode, self._schedule.mode(self.step)
        if self.mode in (Mode.WARMUP, Mode.PROFILED) and not self.profiler.running:
            self._start_profiler()
        if self.mode is Mode.PROFILED and before is Mode.WARMUP and self._job.vetoed():
            self.profiler.stop(None)
            self.do_without_profiler("the profiler does not start on every rank")
        for module in self._notes.modules if self._settings.ddp_blocks else ():
            ddp_variants.switch(module.ddp, on=not self._schedule.is_without_ddp(self.step))
        if self.mode is Mode.DONE and before is not Mode.DONE:
            self._finish()
        elif before in _UNDER_THE_PROFILER and self.mode not in _UNDER_THE_PROFILER:
            with deferred_signals():
                self._write_trace()
        if self.mode in _UNDER_THE_PROFILER:
            self.profiler.begin_step(self.step)
        if self.mode in _TIMED and before is not self.mode:
            self._wait_for_device()
        self._step_start_ns = time.time_ns()
        self._notes.begin_step(self.mode)

    def _wait_for_device(self) -> None:
        """At both ends of a trial's timed steps: in between, the host is ahead of an accelerator by any number."""
        if self._settings.trial and torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def _start_profiler(self) -> None:
        try:
            self.profiler.prepare()
        except RuntimeError as error:
            self._job.veto()
            self.do_without_profiler(f"the profiler does not start ({error})")

    def do_without_profiler(self, why: str) -> None:
        self._warn_for_all(f"{why}: recording without it")
        self._schedule.without_profiler()
        self.mode = self._schedule.mode(self.step)

    def _finish(self) -> None:
        self._notes.begin_step(Mode.DONE)
        self._release_modules()
        with deferred_signals():
            self._write_trace()
            self.write_facts(None)
        self.stopping = self._settings.stop_after

    def close(self, ended: str) -> None:
        """Write what there is. `ended` is ``"finished"``, ``"interrupted"`` or ``"failed: …"``. Raises `OSError`."""
        if self._job.files is None:
            return
        if ended == "finished" and self.mode is not Mode.DONE:
            self._release_modules()
        with deferred_signals():
            self._write_trace()
            self.write_facts("stopped" if self.stopping and ended == "finished" else ended)
            self._job.files.compress_trace()
            self._job.files.close()
        self._notes.release_modules()

    def _release_modules(self) -> None:
        if self._settings.reduces_throughout:
            self._notes.recording_ends(self.step)
        self._notes.release_modules()

    def _write_trace(self) -> None:
        files = self._job.files
        if not self.profiler.running or files is None:
            return
        try:
            self.profiler.stop(files.trace_part)
            if files.trace_part.exists():
                files.keep_trace()
        finally:
            files.discard_part()

    def write_facts(self, ended: str | None) -> None:
        """Raises `OSError`."""
        end = {} if ended is None else {"ended_unix_ns": time.time_ns(), "num_steps": self.step}
        self._job.write_facts({**self._notes.facts(), **end}, self.profiler.pause_ns, ended)
