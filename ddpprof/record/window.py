"""Run the recorded steps of one process: set their modes, control the profiler, and write the output.

`Session` detects where steps end, and then calls this module.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ddpprof import ranks_and_steps
from ddpprof.errors import DdpprofError
from ddpprof.model import DETAILED_MODES, StepMode, UnusualCollective
from ddpprof.model.pulse import StepFlag
from ddpprof.record.ddp_construction import switch_ddp
from ddpprof.record.events import EVENTS, Listener
from ddpprof.record.job import JobRank
from ddpprof.record.machine import GRACE_S, PATIENCE_S, TrainingDevice
from ddpprof.record.profiler import Bounds, StepProfiler
from ddpprof.record.settings import Settings
from ddpprof.record.step_notes import StepNotes
from ddpprof.record.steps import Schedule
from ddpprof.signals import deferred_signals

_STEPS_PER_RATE = 50
"""the learning rate is recorded once per this many steps"""
_HIDES_STEPS = 3
"""a CUDA graph is assumed to contain whole steps if, since the last step ended, it has been replayed this many times as
often as in any earlier step
"""


class Graphs(Listener):
    """Tracks CUDA graphs. No step ends during a capture, and steps inside a replayed graph cannot be detected."""

    def __init__(self, device: TrainingDevice) -> None:
        self._device = device
        self.num_replays = 0
        self._since_step = 0
        self._most_in_step = 0

    def graph_capture_begins(self, graph: Any) -> None:
        self._device.is_captured = True

    def graph_capture_ends(self) -> None:
        self._device.is_captured = False

    def graph_replays(self, graph: Any) -> None:
        self.num_replays += 1
        self._since_step += 1

    def end_step(self) -> None:
        self._most_in_step = max(self._most_in_step, self._since_step)
        self._since_step = 0

    @property
    def hide_steps(self) -> bool:
        """Whether many more replays have run since the end of the last step than in any earlier step."""
        return self._since_step >= _HIDES_STEPS * max(1, self._most_in_step)


class Baseline(Listener):
    """Disables gradient communication: every forward pass in baseline steps runs as if under ``ddp.no_sync()``.

    The ranks' parameters diverge in these steps. The job therefore ends after them, and no checkpoints are written. The
    script's own ``no_sync()`` still works. This listener is bound only in baseline steps.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[DistributedDataParallel, bool]] = {}
        """modules that are in a forward pass, with the value to which ``require_backward_grad_sync`` must be
        restored
        """
        self.has_begun = False

    def pre_forward_begins(self, ddp: DistributedDataParallel, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.has_begun = True
        self._held.setdefault(id(ddp), (ddp, bool(ddp.require_backward_grad_sync)))
        ddp.require_backward_grad_sync = False

    def forward_ends(self, ddp: DistributedDataParallel, inner_end_ns: int, outputs: Any) -> None:
        self._restore(ddp)

    def forward_fails(self, ddp: DistributedDataParallel, error: BaseException) -> None:
        self._restore(ddp)

    def _restore(self, ddp: DistributedDataParallel) -> None:
        held = self._held.pop(id(ddp), None)
        if held is not None:
            ddp.require_backward_grad_sync = held[1]


_UNRECORDED = (StepMode.DONE, StepMode.SKIP, StepMode.OFF)
_UNDER_THE_PROFILER = (StepMode.PROFILED, StepMode.CUT, StepMode.BASELINE)
_PROFILED = (StepMode.WARMUP, StepMode.PROFILED)
_TIMED = (StepMode.OFF, StepMode.WITHOUT_DDP)
_BYTES_OF_A_PARAMETER = 40_000
"""bytes of host memory that the profiler needs per step and parameter, for the operators of gradients and optimizers"""
_MUCH_BYTES = 2 * 10**9
_PATIENCE_STEPS = 3
"""when the profiler stops, ddpprof waits for the accelerator for up to this many steps, because the host may be that
far ahead
"""
_STUCK = "the accelerator did not become idle after the profiled steps"
_FAILED = "the job failed during the profiled steps; ddpprof does not wait for the accelerator of a failed job"


class Window:
    """Runs the schedule of recorded steps: sets the mode of each step, controls the profiler, and writes the files."""

    def __init__(self, settings: Settings, job: JobRank, notes: StepNotes) -> None:
        self._settings = settings
        self._job = job
        self._notes = notes
        self._schedule = Schedule(settings)
        self.profiler = StepProfiler(settings, notes.device)
        self._bounds = Bounds(self._leave_out, settings.most_seconds, settings.most_bytes)
        self._ends_job = settings.stop_after
        self._knows_of_vetoes = False
        self._thread = 0
        self._no_trace: str | None = None
        """why this rank is not profiled, or is no longer profiled"""
        self._profiles = True
        self.mode = StepMode.SKIP
        self.step = 0
        """number of the current step"""
        self.end_place: dict[str, Any] = {}
        """line of the user's code in which an error ended training, as fields of the `Record`"""
        self.ended_ns: int | None = None
        """time at which training ended, in ns since 1970, as it was last written to the record"""
        self.unusual_collective: UnusualCollective | None = None
        self.stopping = False
        """True if the job should end now, because recording is complete"""
        self._step_start_ns = 0
        self.pauses: list[tuple[int, int]] = []
        """beginning and end, in ns of ``time.perf_counter_ns``, of each pause in which ddpprof changes its mode"""

    def begin(self) -> None:
        """Begin with step 0 of the training."""
        self._thread = threading.get_ident()
        if not ranks_and_steps.is_profiled(self._job.rank, self._job.world_size, self._settings.profile_ranks):
            self._profiles, self._no_trace = False, "it is not among the profiled ranks"
        if self._notes.device.is_accelerator:
            self._schedule = Schedule(self._settings, on_accelerator=True)
        self._step_start_ns = time.time_ns()

    def end_step(self) -> None:
        """End a step.

        ddpprof's own work between steps, except starting and stopping the profiler, counts as part of the step.
        """
        self.profiler.end_step()
        self._bounds.step_ends(usual=self.mode is not StepMode.SKIP)
        if self.mode is StepMode.PROFILED and self.profiler.has_left_out:
            self.mode = StepMode.CUT
        if self.mode in _TIMED and self._schedule.mode(self.step + 1) is not self.mode:
            self._wait_for_device()
        if self._job.files is not None and self.mode in (*_TIMED, StepMode.CUT, *DETAILED_MODES):
            self._job.files.append_step(self._notes.recorded_step(self.step, self.mode, self._step_start_ns))
        self._notes.end_step()
        self.count_step()

    def count_step(self) -> None:
        """Count a step that has ended."""
        if self.profiler.left is not None:
            self.profiler.clear_away()
        self.step += 1
        if self.step % _STEPS_PER_RATE == 0:
            self._notes.note_rate(self.step)
        if self.mode not in _UNRECORDED:
            EVENTS.flagged(StepFlag.RECORDED)

    @property
    def num_skipped(self) -> int:
        """Number of initial steps that are not recorded."""
        return self._schedule.num_skipped

    @property
    def is_to_open(self) -> bool:
        """Whether the last skipped step has just ended."""
        return self.step == self._schedule.num_skipped

    def begin_step(self) -> None:
        """Switch to the mode of the step that begins."""
        if self._job.files is None:
            self._step_start_ns = time.time_ns()
            return
        if self.is_to_open:
            self._notes.recording_begins(self.step)
        before, self.mode = self.mode, self._mode_now()
        if before is not self.mode:
            EVENTS.flagged(StepFlag.RECORDED)
        if self.mode in _PROFILED and not self.profiler.running:
            self._start_profiler()
        self._agree()
        for module in self._notes.modules if self._settings.ddp_blocks else ():
            switch_ddp(module.ddp, on=not self._schedule.is_without_ddp(self.step))
        if self.mode is StepMode.DONE and before is not StepMode.DONE:
            self._finish()
        elif before in _UNDER_THE_PROFILER and self.mode not in _UNDER_THE_PROFILER:
            self._end_profiling()
        profiled = self.mode in _UNDER_THE_PROFILER and self.profiler.running
        if profiled:
            self.profiler.begin_step(self.step)
        if self.mode in _TIMED and before is not self.mode:
            self._wait_for_device()
        self._step_start_ns = time.time_ns()
        self._notes.begin_step(self.mode)
        self._bounds.step_begins(profiled)

    def _mode_now(self) -> StepMode:
        """Return the schedule's mode; ``SKIP`` for profiled steps if this rank does not profile."""
        mode = self._schedule.mode(self.step)
        if mode in _PROFILED and self._no_trace is None:
            self._no_trace = self._bounds.exceeded()
            if self._no_trace is not None:
                self._job.warn_for_all(f"profiling stops after {self.step} steps: {self._no_trace}")
        if mode in _PROFILED and self._no_trace is not None:
            return StepMode.SKIP
        return mode

    def without_common_steps(self) -> None:
        """Handle a job without all-reduces. ddpprof does not end the job, because its ranks may be at different steps.

        Raises `DdpprofError` if the recording needs gradient communication.
        """
        if self._settings.baseline_steps:
            raise DdpprofError("--baseline-steps needs steps with gradient communication, but the script has none.")
        if self._ends_job and not self._settings.trial:
            self._ends_job = False
            self._job.warn_for_all(
                "ddpprof does not end the job: without DDP's synchronization, the ranks might end at different steps"
            )

    def cut_short(self, why: str) -> None:
        """Stop profiling within a step, between two operators, and print the reason `why`."""
        if self.mode in _PROFILED and self.profiler.running:
            self._no_trace, self.mode = why, StepMode.SKIP
            self._job.warn_for_all(f"profiling stops after {self.step} steps: {why}")
            self._end_profiling()

    def _agree(self) -> None:
        """Exchange decisions with the other ranks.

        Values that a rank writes to the store before an all-reduce are visible to all ranks after the all-reduce.
        """
        if self._schedule.mode(self.step - 1) in _PROFILED and not self._knows_of_vetoes:
            self._knows_of_vetoes = True
            self._notes.device.comes_to_rest(self._patience_s)
            if self._job.agreement.vetoed():
                self.profiler.stop()
                self.do_without_profiler("the profiler did not start on every rank")
        if self._settings.trial or not self._ends_job:
            return
        if self.step == self._schedule.common_end - 1:
            self._job.agreement.come_to_the_end()
        elif self.step == self._schedule.common_end:
            self._notes.device.comes_to_rest(self._patience_s)
            if not self._job.agreement.all_came_to_the_end():
                self._schedule.end_at_common_end()
                self._ends_job, self.mode = False, self._schedule.mode(self.step)
                self._job.warn_for_all("some ranks no longer record, so ddpprof does not end the job")

    @property
    def _patience_s(self) -> float:
        return max(PATIENCE_S, _PATIENCE_STEPS * self._bounds.longest_s)

    def _leave_out(self) -> bool:
        """Stop collecting for the rest of a step that takes too long. Return False if this is not possible now.

        This may be called between any two instructions of the main thread.
        """
        with suppress(Exception):
            return threading.get_ident() == self._thread and self.profiler.leave_out()
        return False

    def _wait_for_device(self) -> None:
        """Wait for the device in a trial.

        Called before the first and after the last timed step, not between timed steps.
        """
        if self._settings.trial:
            self._notes.device.synchronize()

    def _start_profiler(self) -> None:
        self._warn_of_memory()
        try:
            self.profiler.prepare()
        except RuntimeError as error:
            self._job.agreement.veto()
            self.do_without_profiler(f"the profiler did not start ({error})")

    def _warn_of_memory(self) -> None:
        num_parameters = sum(module.num_parameters for module in self._notes.modules)
        num_steps = self._schedule.num_profiled
        num_bytes = num_parameters * num_steps * _BYTES_OF_A_PARAMETER
        if num_bytes > _MUCH_BYTES:
            self._job.warn_for_all(
                f"profiling {num_steps} steps with {num_parameters} parameter tensors may take {num_bytes / 1e9:.1f} "
                "GB of memory on each rank. To use less memory, record with --steps 1; to use almost none, with "
                "--no-profiler"
            )

    def do_without_profiler(self, why: str) -> None:
        self._no_trace = why
        self._job.warn_for_all(f"{why}: recording without the profiler")
        self._schedule.without_profiler()
        self.mode = self._schedule.mode(self.step)

    def _finish(self) -> None:
        self._notes.begin_step(StepMode.DONE)
        self._release_modules()
        self._end_profiling()
        with deferred_signals():
            self.write_facts(None)
        self.stopping = self._ends_job

    def _end_profiling(self) -> None:
        """End profiling between two steps. A helper thread writes the trace; training waits if further steps follow."""
        self._bounds.end()
        was_running = self.profiler.running
        recorded, files = self.profiler.stop(self._patience_s), self._job.files
        if recorded is None or files is None:
            self._no_trace = self._no_trace or (_STUCK if was_running else None)
            return
        files.trace.write(recorded)
        if self.mode is not StepMode.DONE:
            with deferred_signals() as arrived, self.profiler.paused():
                files.trace.wait(GRACE_S, arrived)

    def close(self, ended: str) -> None:
        """Write all data recorded so far. Raises `OSError`.

        `ended`: how training ended, in the format of `how_it_ends`.
        """
        files, is_well = self._job.files, ended == "finished"
        if files is None:
            return
        if is_well and self.mode is not StepMode.DONE:
            self._release_modules()
        try:
            self._bounds.end()
            if is_well or not self._notes.device.is_accelerator:
                self._end_profiling()
            else:
                self._no_trace = self._no_trace or (_FAILED if self.profiler.running else None)
                self.profiler.abandon()
        finally:
            with deferred_signals() as arrived:
                self.write_facts("stopped" if self.stopping and is_well else ended)
                files.trace.finish(GRACE_S, arrived if is_well else (0,))
                files.close()
        self._notes.release_modules()

    def close_in_background(self) -> None:
        """Complete the files of the recorded steps while training continues. Raises `OSError`."""
        files = self._job.files
        assert files is not None
        files.trace.finish(GRACE_S, ())
        self.write_facts("finished")
        files.close()

    def give_up(self) -> None:
        """End the recording while training continues."""
        self._bounds.end()
        self.profiler.stop()

    def _release_modules(self) -> None:
        if self._settings.reduces_throughout:
            self._notes.recording_ends(self.step)
        self._notes.release_modules()

    def write_facts(self, ended: str | None, at_ns: int | None = None) -> None:
        """Write the rank's facts. Raises `OSError`. `at_ns`: end of training, in ns since 1970; now by default."""
        if ended in (None, "finished", "stopped"):  # otherwise, the accelerator may hang
            with suppress(Exception):
                self._notes.unaveraged.second_look(self.step)
        about = {"profiles": self._profiles, "no_trace": self._no_trace}
        end: dict[str, object] = {}
        if ended is not None:
            self.ended_ns = at_ns or time.time_ns()
            end = {"ended_unix_ns": self.ended_ns, "num_steps": self.step}
            end |= {**self.end_place, "unusual_collective": self.unusual_collective}
        self._job.write_facts(
            {**self._notes.facts(self.step), **about, **end}, [*self.pauses, *self.profiler.pauses], ended
        )
