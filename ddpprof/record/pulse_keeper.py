"""The threads that maintain this rank's pulse.

`PulseKeeper` writes the rows of steps, copies the pulse into the run directory, samples memory and CPU use, and records
the training thread's stack if a step is overdue. `FirstSteps` does this only if a rank makes no progress before its
pulse begins.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType

import torch.distributed as dist
from msgspec import structs

from ddpprof import own_files, rundir
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.overdue import encode_facts, frames_of
from ddpprof.model.pulse import (
    OVERDUE_S,
    Activity,
    Ended,
    PulseIdentity,
    PulseState,
    PulseSteps,
    overdue_after_s,
    usual_ns,
)
from ddpprof.model.pulse_layout import write_state
from ddpprof.model.tables import rows_of
from ddpprof.monitor.pulse_files import gather_left
from ddpprof.record import machine
from ddpprof.record.captures import Captures
from ddpprof.record.job import JobRank, LastStep
from ddpprof.record.machine import resident_bytes
from ddpprof.record.overdue_facts import all_reduces_since, last_bucket, overdue_facts
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.settings import Settings
from ddpprof.record.step_notes import StepNotes
from ddpprof.words import CONSTRUCT_AGAIN, not_averaged, trained_apart

_ROUND_S = 0.25
_ROUNDS_PER_COPY = 4
_ROUNDS_PER_SAMPLE = 4
_USUAL_STEPS = 50
_END_S = 5.0
_EXIT_S = 5.0
"""seconds between stack samples if a process does not exit"""
_FACTS_EVERY_S = 10.0
_TRAINS = (Activity.BACKWARD, Activity.OPTIMIZER)


class PulseKeeper:
    """Maintains one pulse. Only the constructor raises errors. Later errors only end the copying of the pulse."""

    def __init__(
        self,
        pulse: PulseWriter,
        last_step: LastStep,
        bucket_numels: tuple[tuple[int, ...], ...],
        evaluates: Callable[[], bool],
        warn: Callable[[str], None],
        *,
        is_preliminary: bool = False,
    ) -> None:
        """Create the copy in the run directory. Raises ``OSError``.

        `bucket_numels`: number of elements of each bucket of each DDP module. `evaluates`: returns True if all DDP
        modules are in evaluation mode. `is_preliminary`: whether the script may not have begun to train.
        """
        self._is_preliminary = is_preliminary
        self._bucket_numels, self._evaluates = bucket_numels, evaluates
        self._trains_in_training_mode = True
        """False if the DDP modules are in evaluation mode even during training; this mode then does not indicate an
        evaluation
        """
        self._pulse, self._last_step = pulse, last_step
        self._training_task = next(
            (str(one.native_id) for one in threading.enumerate() if one.ident == pulse.training_thread), ""
        )
        """ID of the training thread in the operating system"""
        self._warn = warn
        self._copied_steps = pulse.identity.first_step
        self._copied_summaries = self._copied_span = self._copied_samples = 0
        self._num_samples = 0
        self._copies = True
        self._told_of_rows = False
        self._ending, self._ended = threading.Event(), threading.Event()
        self._process_exits = False
        self._stack = ""
        """stack that was last written to the pulse"""
        self._facts_of: str | None = None
        """stack that the thread had when facts were last written to the pulse"""
        self._facts_at_s = 0.0
        self._wrote_facts = False
        self.learning_rate: Callable[[], float | None] = lambda: None
        self.each_round: Callable[[], None] | None = None
        """additional function that the keeper's thread calls several times a second"""
        self._trains_in_training_mode = is_preliminary or not self._are_in_evaluation_mode()
        with own_files.whole_file(Path(pulse.identity.kept)) as part:  # readers see no file or a complete file
            self._copy = os.open(part, os.O_WRONLY | os.O_CLOEXEC)
            os.ftruncate(self._copy, layout.NUM_BYTES)
            self._keep()
        self._thread = threading.Thread(target=self._run, name="ddpprof-pulse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._go_round()
        finally:
            self._ended.set()
        if self._process_exits:
            self._look_at_exit()

    def _go_round(self) -> None:
        round_number = 0
        while not self._ending.wait(_ROUND_S):
            round_number += 1
            self._make_rows()
            if round_number % _ROUNDS_PER_SAMPLE == 0:
                self._sample()
            if round_number % _ROUNDS_PER_COPY == 0:
                self._find_stack()
                write_state(self._pulse.words, "tick_ns", time.time_ns())
                self._keep()
            if self.each_round is not None:
                self._do_also(self.each_round)

    def _look_at_exit(self) -> None:
        """Write the main thread's stack every few seconds if the process does not exit after training."""
        while True:
            time.sleep(_EXIT_S)
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            if frame is None:
                return
            self._write_stack(frame)
            try:
                os.pwrite(self._copy, self._pulse.memory[: layout.STEPS.at], 0)
            except OSError:
                return

    def _make_rows(self) -> None:
        rows = self._pulse.rows
        rows.make()
        if rows.problem is not None and not self._told_of_rows:
            self._told_of_rows = True
            self._warn(f"stopped recording how long steps take: {rows.problem}. Training continues.")

    def _do_also(self, also: Callable[[], None]) -> None:
        try:
            also()
        except Exception as error:  # the job's store may no longer exist, or the disk may be full; the pulse continues
            self.each_round = None
            if not isinstance(error, RuntimeError):
                self._warn(f"stopped accepting requests: {error}. Training continues.")

    def close(self, process_exits: bool = False) -> bool:
        """Copy the pulse one last time, and end the thread. Return False if the disk does not respond.

        `process_exits`: whether the process is about to exit. If the process does not exit, the thread writes the main
        thread's stack.
        """
        self._process_exits = process_exits
        self._ending.set()
        if threading.current_thread() is not self._thread and not self._ended.wait(_END_S):
            return False  # the thread still uses the file
        self._keep()
        if not process_exits:
            os.close(self._copy)
        return True

    def _sample(self) -> None:
        memory_bytes = resident_bytes()
        self._pulse.rows.memory_bytes = UNKNOWN if memory_bytes is None else memory_bytes
        row = (
            time.time_ns(),
            self._pulse.rows.memory_bytes,
            machine.throttled_ns(),
            machine.queued_ns(),
            machine.major_faults(),
            machine.core_khz(),
            self._training_cpu_ns(),
            time.process_time_ns(),
            machine.thread_queued_ns(self._training_task),
        )
        layout.SAMPLES.row.pack_into(self._pulse.memory, layout.SAMPLES.place(self._num_samples), *row)
        self._num_samples += 1
        write_state(self._pulse.words, "num_samples", self._num_samples)

    def _training_cpu_ns(self) -> int:
        try:
            return time.clock_gettime_ns(self._pulse.training_clock)
        except OSError:  # the thread has ended
            return UNKNOWN

    def _find_stack(self) -> None:
        """Write the training thread's stack, and other facts about it, if its step is overdue."""
        state = self._pulse.state()
        is_evaluating = self._is_evaluating(state)
        if not self._is_overdue(state):
            if state.stack_ns != UNKNOWN:
                self._forget_stack()
            return
        if state.activity == Activity.BACKWARD and state.stack_ns == UNKNOWN:
            self._find_bucket(state)
        frame = sys._current_frames().get(self._pulse.training_thread)
        if frame is not None:
            self._write_stack(frame)
            write_state(self._pulse.words, "evaluates", is_evaluating)

    def _forget_stack(self) -> None:
        for name in ("stack_ns", "module", "bucket"):
            write_state(self._pulse.words, name, UNKNOWN)
        write_state(self._pulse.words, "evaluates", False)
        self._stack, self._facts_of = "", None

    def _write_stack(self, frame: FrameType) -> None:
        kept: list[str] = []
        for line in map(str, frames_of(traceback.walk_stack(frame))):  # innermost first, as long as they fit
            if sum(len(one.encode(errors="replace")) + 1 for one in [*kept, line]) >= layout.STACK_BYTES:
                break
            kept.append(line)
        stack = "\n".join(reversed(kept))
        if self._are_facts_due(stack):
            self._facts_of, self._facts_at_s = stack, time.monotonic()
            self.write_facts(stack)
        has_moved = stack != self._stack and bool(self._stack)
        if has_moved and self._is_preliminary and self._pulse.state().activity == Activity.OTHER:
            write_state(self._pulse.words, "since_ns", time.time_ns())  # the script's own code shows no other progress
        self._stack = stack
        text = stack.encode(errors="replace") + b"\0"
        self._pulse.memory[layout.STACK_AT : layout.STACK_AT + len(text)] = text
        write_state(self._pulse.words, "stack_ns", time.time_ns())

    def _are_facts_due(self, stack: str) -> bool:
        """Return True when a step has become overdue, and again when the stack has changed and then stayed the same.

        Facts are not written more often, because a long evaluation also counts as overdue and must not be slowed down.
        """
        if self._facts_of is None:
            return True
        stands_still = stack == self._stack and stack != self._facts_of
        return stands_still and time.monotonic() - self._facts_at_s > _FACTS_EVERY_S

    def write_facts(self, stack: str = "") -> None:
        """Write further facts, such as the collectives that the rank has called. This takes about 100 ms."""
        pulse = self._pulse
        facts = overdue_facts(pulse.training_thread, pulse.identity.created_ns, self.learning_rate(), stack)
        content = encode_facts(facts, layout.FACTS_BYTES - 1) + b"\0"
        pulse.memory[layout.FACTS_AT : layout.FACTS_AT + len(content)] = content
        self._wrote_facts = True

    def _is_evaluating(self, state: PulseState) -> bool:
        """Return True if all modules are in evaluation mode, but were in training mode in their last training step."""
        evaluates = self._are_in_evaluation_mode()
        if not evaluates or state.activity in _TRAINS:
            self._trains_in_training_mode = not evaluates
        return evaluates and self._trains_in_training_mode

    def _are_in_evaluation_mode(self) -> bool:
        try:
            return self._evaluates()
        except Exception:  # a user's module may be unusual
            return False

    def _find_bucket(self, state: PulseState) -> None:
        """Write which bucket was launched last in the current backward pass, according to torch's flight recorder."""
        found = last_bucket(all_reduces_since(state.since_ns), self._bucket_numels)
        if found is not None:
            for name, value in found._asdict().items():
                write_state(self._pulse.words, name, value)

    def _is_overdue(self, state: PulseState) -> bool:
        took_s = (time.time_ns() - state.step_since_ns) / 1e9
        if took_s < OVERDUE_S:
            return False
        content = self._pulse.memory[layout.STEPS.at : layout.STEPS.end]
        steps = layout.in_order(layout.decode_rows(PulseSteps, content), self._pulse.identity, state)
        usual = usual_ns(rows_of(steps, slice(-_USUAL_STEPS, None)))
        return usual is None or took_s >= overdue_after_s(usual / 1e9)

    def _keep(self) -> None:
        """Copy everything that has changed since the last copy."""
        if not self._copies:
            return
        try:
            self._copy_changes()
        except OSError as error:
            self._copies = False
            self._warn(f"stopped copying this rank's state to the run directory: {error.strerror}. Training continues.")

    def _copy_changes(self) -> None:
        self._make_rows()
        memory, state = self._pulse.memory, self._pulse.state()
        changed = [
            *layout.STEPS.spans(self._copied_steps, state.num_steps),
            *layout.SAMPLES.spans(self._copied_samples, state.num_samples),
        ]
        if (state.num_summaries, state.steps_per_summary) != (self._copied_summaries, self._copied_span):
            first = self._copied_summaries if state.steps_per_summary == self._copied_span else 0
            size = layout.SUMMARY.size
            changed.append((layout.SUMMARIES_AT + first * size, layout.SUMMARIES_AT + state.num_summaries * size))
        # The state comes last, because it determines which rows are valid.
        changed.append((0, layout.STEPS.at if self._wrote_facts else layout.FACTS_AT))
        for begin, end in changed:
            os.pwrite(self._copy, memory[begin:end], begin)
        self._copied_steps, self._copied_samples = state.num_steps, state.num_samples
        self._copied_summaries, self._copied_span = state.num_summaries, state.steps_per_summary
        self._last_step.step_ends(state.step, state.step_since_ns)


_FIRST_ROUND_S, _LONGEST_ROUND_S = 1.0, 10.0
_NO_PROGRESS_S = 10.0
"""seconds after which a rank that makes no progress in its first steps is shown to other processes"""
_LEADS_AFTER_S = 30.0
"""seconds without progress after which a rank other than rank 0 creates the run directory if it does not exist"""


class FirstSteps:
    """Shows other processes a rank that makes no progress before the ranks have agreed to record.

    If the construction of a DDP module or one of the first steps takes long, a thread finds or creates the run
    directory without waiting for other ranks, and maintains a preliminary pulse there. `RunningPulse` replaces it.
    """

    def __init__(self, job: JobRank, notes: StepNotes, training_thread: int, clock: int) -> None:
        """Begin with step 0. `clock`: ID of the training thread's CPU clock.

        Raises ``OSError`` or ``ValueError`` if there can be no pulse.
        """
        self._job, self._notes = job, notes
        nobody = PulseIdentity(
            run_id="",
            rank=0,
            world_size=1,
            host="",
            machine_id="",
            pid=0,
            created_ns=time.time_ns(),
            shared="",
            kept="",
        )
        self.writer = PulseWriter(nobody, training_thread, clock=clock)
        self._keeper: PulseKeeper | None = None
        self._changing, self._ending = threading.Lock(), threading.Event()
        threading.Thread(target=self._run, name="ddpprof-first-steps", daemon=True).start()

    def _run(self) -> None:
        round_s = _FIRST_ROUND_S
        with suppress(Exception):  # the job's store or the disk does not respond; training continues without this pulse
            while self._keeper is None and not self._ending.wait(round_s):
                waited_s = (time.time_ns() - self.writer.state().step_since_ns) / 1e9
                if waited_s > _NO_PROGRESS_S:
                    self._look_for_run(waited_s)
                    round_s = min(2 * round_s, _LONGEST_ROUND_S)  # all ranks ask the same store

    def _look_for_run(self, waited_s: float) -> None:
        job, notes = self._job, self._notes
        if not (dist.is_available() and dist.is_initialized()):
            return
        may_lead = dist.get_rank() == 0 or (waited_s > _LEADS_AFTER_S and _is_one_host(os.environ))
        directory = job.find_run(may_lead)
        if directory is None:
            return
        device = notes.device.type if notes.modules else _device_of_backend()
        identity = job.identity(directory, device, first_step=0)
        with self._changing:
            if self._ending.is_set():
                return
            self.writer.identify(structs.replace(identity, created_ns=self.writer.identity.created_ns, shared=""))
            last_step = LastStep(directory / rundir.last_step_file(job.rank))
            # The sizes of the buckets are unknown: reading them needs the reducer's lock, which a backward pass holds.
            self._keeper = PulseKeeper(
                self.writer, last_step, (), notes.is_evaluating, warn=lambda _said: None, is_preliminary=True
            )

    def end(self, ended: Ended = Ended.NOT_YET, process_exits: bool = False) -> None:
        """End the preliminary pulse. `ended`: how training ended; ``NOT_YET`` if the rank's pulse begins now."""
        self._ending.set()
        with self._changing:
            keeper, self._keeper = self._keeper, None
        if keeper is None or not self._job.in_this_process():
            return
        if ended is Ended.FAILED:
            keeper.write_facts()
        self.writer.ends_as(ended, process_exits)
        has_closed = keeper.close(process_exits and ended is not Ended.FINISHED)
        if ended is Ended.FINISHED and has_closed:  # the script has not trained, so there is nothing to show
            self._withdraw()

    def _withdraw(self) -> None:
        kept = Path(self.writer.identity.kept)
        with suppress(OSError):
            own_files.remove_file(kept)
            own_files.remove_file(kept.with_name(rundir.last_step_file(self._job.rank)))
            if self._job.leads and not self._job.attached:
                own_files.remove_file(kept.with_name(rundir.RUN_FILE))


def _device_of_backend() -> str | None:
    """Return the type of device on which the job trains, before its first forward pass; ``None`` if it is unknown."""
    return "cpu" if dist.get_backend() == "gloo" else None


def _is_one_host(environment: Mapping[str, str]) -> bool:
    """Return True if torchrun, or a launcher that sets the same variables, has started all ranks on this host."""
    return environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE")


_ROUNDS_PER_LOOK = 8
"""in one of this many rounds, ddpprof looks for trained parameters that DDP does not average"""


class RunningPulse:
    """Owns the pulse of a rank from creation to removal."""

    def __init__(
        self,
        job: JobRank,
        settings: Settings,
        notes: StepNotes,
        first_step: int,
        training_thread: int,
        num_passes: int = 0,
    ) -> None:
        """Begin the pulse with step `first_step`. Raises ``OSError`` or ``ValueError`` if it cannot be created.

        `num_passes`: number of synchronizing backward passes before this step.
        """
        assert job.files is not None
        self._job, self._notes = job, notes
        self._unfrozen: tuple[str, ...] = ()
        self._looks_for_unfrozen = job.leads and job.group_size > 1
        self._num_rounds = 0
        self._tells_rate = True
        """whether the learning rate must still be written when a loss becomes NaN or infinite"""
        gather_left()
        with ExitStack() as undo:
            identity = job.identity(job.files.directory, notes.device.type, first_step)
            self.writer = PulseWriter(identity, training_thread, num_passes)
            undo.callback(self.writer.close)
            self._keeper = PulseKeeper(
                self.writer, job.files.last_step, notes.bucket_numels(), notes.is_evaluating, job.warn
            )
            undo.callback(self._keeper.close)
            self.captures = Captures(job, settings)
            undo.pop_all()
        self._keeper.each_round, self._keeper.learning_rate = self._round, notes.learning_rate

    def _round(self) -> None:
        """Do the work that recurs several times a second."""
        self._num_rounds += 1
        if self._tells_rate and self.writer.num_nonfinite:
            self._tells_rate = False
            self._keeper.write_facts()
        if self._looks_for_unfrozen and self._num_rounds % _ROUNDS_PER_LOOK == 0:
            try:
                self._look_for_unfrozen()
            except Exception:  # the training thread may be constructing or releasing a module
                self._unfrozen = ()
        self.captures.round()

    def _look_for_unfrozen(self) -> None:
        """Report parameters that are trained without averaging by DDP, if two consecutive checks find them."""
        before, self._unfrozen = self._unfrozen, self._notes.unfrozen()
        if self._unfrozen and self._unfrozen == before:
            self._looks_for_unfrozen = False
            self._job.warn(f"{not_averaged(before)}; {trained_apart(before)}. {CONSTRUCT_AGAIN}")

    def end(self, ended: Ended, process_exits: bool = False) -> None:
        """Record how training ended, and copy the pulse one last time.

        Does nothing in a forked child, because the pulse belongs to the parent process.
        """
        if not self._job.in_this_process():
            return
        self.captures.close()
        if ended is Ended.FAILED:  # possibly because collectives of two ranks did not match
            self._keeper.write_facts()
        self.writer.ends_as(ended, process_exits)
        if self._keeper.close(process_exits):  # otherwise the next job on this machine copies the pulse
            self.writer.close()
