"""All that lives as long as a rank's pulse: its keeper, and the captures that are asked for."""

from __future__ import annotations

from contextlib import ExitStack

from ddpprof.model.pulse import Ended
from ddpprof.monitor.pulse_files import gather_left
from ddpprof.record.captures import Captures
from ddpprof.record.job import JobRank
from ddpprof.record.notes import StepNotes
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.pulse_keeper import PulseKeeper
from ddpprof.record.settings import Settings
from ddpprof.words import CONSTRUCT_AGAIN, not_averaged, trained_apart

_ROUNDS_PER_LOOK = 8
"""number of rounds from one look at parameters to the next"""


class RunningPulse:
    """A pulse from beginning to end."""

    def __init__(
        self,
        job: JobRank,
        settings: Settings,
        notes: StepNotes,
        first_step: int,
        training_thread: int,
    ) -> None:
        """Begin with step `first_step`. Raises ``OSError`` or ``ValueError`` if there can be no pulse."""
        assert job.files is not None
        self._job, self._notes = job, notes
        self._unfrozen: tuple[str, ...] = ()
        self._looks_for_unfrozen = job.leads and job.group_size > 1
        self._num_rounds = 0
        self._tells_rate = True
        """whether the learning rate is to be told once a loss is NaN"""
        gather_left()
        with ExitStack() as undo:
            self.writer = PulseWriter(job.identity(notes.device.type, first_step), training_thread)
            undo.callback(self.writer.close)
            self._keeper = PulseKeeper(
                self.writer, job.files.last_step, notes.bucket_numels(), notes.is_evaluating, job.warn
            )
            undo.callback(self._keeper.close)
            self.captures = Captures(job, settings)
            undo.pop_all()
        self._keeper.each_round, self._keeper.learning_rate = self._round, notes.learning_rate

    def _round(self) -> None:
        """Do what is to be done several times a second."""
        self._num_rounds += 1
        if self._tells_rate and self.writer.num_nonfinite:
            self._tells_rate = False
            self._keeper.write_facts()
        if self._looks_for_unfrozen and self._num_rounds % _ROUNDS_PER_LOOK == 0:
            try:
                self._look_for_unfrozen()
            except Exception:  # the training thread was just constructing or releasing a module
                self._unfrozen = ()
        self.captures.round()

    def _look_for_unfrozen(self) -> None:
        """Say once that the script trains parameters which DDP does not average, once it stops unfreezing them."""
        before, self._unfrozen = self._unfrozen, self._notes.unfrozen()
        if self._unfrozen and self._unfrozen == before:
            self._looks_for_unfrozen = False
            self._job.warn(f"{not_averaged(before)}; {trained_apart(before)}. {CONSTRUCT_AGAIN}")

    def end(self, ended: Ended, process_exits: bool = False) -> None:
        """Note how the training ended, and copy the pulse a last time. In a forked child all this is the parent's."""
        if not self._job.in_this_process():
            return
        self.captures.close()
        if ended is Ended.FAILED:  # perhaps of a collective that met another one
            self._keeper.write_facts()
        self.writer.ends_as(ended, process_exits)
        if self._keeper.close(process_exits):  # otherwise the next job copies it
            self.writer.close()
