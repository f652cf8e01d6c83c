"""Write the pulse of this rank: a record of the training thread's activity, in memory that remains if the process dies.

The training thread writes its current activity to mapped memory, and appends finished activities to a list. This makes
no system call, and cannot block or raise. The value of a loss is read only if it is on CPU. Code that runs once per
step is not in the CPU caches, so it is kept short and makes few calls. `PulseRows` turns the list into rows of steps in
another thread. The memory is in ``/dev/shm``, because a mapped file on a disk would end the training with SIGBUS if it
were truncated. `PulseKeeper` does all other work in a separate thread.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, get_ident
from time import pthread_getcpuclockid, time_ns
from typing import Any

from torch import Tensor, is_grad_enabled
from torch.nn.parallel import DistributedDataParallel

from ddpprof import own_files
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import (
    Activity,
    Ended,
    PulseIdentity,
    PulseState,
    PulseSteps,
    PulseSummaries,
    StepFlag,
    joined,
    summary_of,
)
from ddpprof.model.pulse_layout import state_word, write_state
from ddpprof.record.compilation import num_compiled
from ddpprof.record.events import Listener

_NUM_ACTIVITIES = len(Activity)
_NUM_STEPS = state_word("num_steps")


# A note has a kind and a value. The kind is one of these four, or an `Activity`; the value of an `Activity` is the time
# at which it began.
WAITED = 8
"""time in ns that the training thread waited for other ranks during the current activity, but outside backward
passes
"""
GRADIENTS = 9
"""for each module: times at which its gradients became ready in the backward pass that has just ended, in ns since a
zero point chosen by PyTorch (empty if unknown), and the earliest and latest possible time of this zero point
"""
NOTED_FLAGS = 10
"""`StepFlag` to add to the current step"""
STEP_ENDED = 11
"""number of the step that ended when the current activity began"""

_Gradients = Sequence[tuple[Sequence[int], int, int]]
_GRADIENTS_PER_LOOK = 400
"""maximum number of gradient times that are read per step, on average; reading this many takes about 10 µs"""
_BETWEEN_LOOKS_NS = 2_000_000
"""gradient times are read in every step if steps take at least this long, in ns; in shorter steps, they are read less
often
"""
_STEPS_OF_MEAN = 16
"""the mean duration of steps is computed over at least this many steps"""


class PulseRows:
    """Writes the rows of steps and their summaries into the memory of one pulse."""

    def __init__(self, memory: mmap.mmap, words: memoryview[int], first_step: int, begin_ns: int) -> None:
        """Start with step number `first_step`, which begins at `begin_ns`."""
        self._memory, self._words = memory, words
        self.notes: deque[tuple[int, Any]] = deque()
        """kind and value of each note; any thread may append notes"""
        self.problem: str | None = None
        """reason why no more rows are written; ``None`` while rows are written"""
        self._making = Lock()
        self._num_summaries, self._steps_per_summary = 0, layout.STEPS_PER_SUMMARY
        self._summarized_until = first_step
        self.memory_bytes = UNKNOWN
        """resident memory of the process in the last sample"""
        self.looks_every = 1
        """gradient times are read in one of this many steps; 1 means in every step"""
        self._looks_by_length = 1
        """smallest `looks_every` that the duration of the steps allows"""
        self._chosen_at_step, self._chosen_at_ns = first_step, begin_ns
        """number of the step at which `looks_every` was last chosen, and time at which that step began"""
        self._num_gradients = 0
        """largest number of gradients that a module has had in a backward pass so far"""
        self._activity = _OTHER
        self._before_ns = self._since_ns = self._step_start_ns = begin_ns
        self._begin_step()
        words[_NUM_STEPS] = first_step
        self.made_ns = time_ns()
        """time at which the notes were last turned into rows"""

    def _begin_step(self) -> None:
        self._spent_ns = [0] * _NUM_ACTIVITIES
        self._wait_ns = self._first_gradient_ns = UNKNOWN
        self._waited_ns = self._flags = 0

    def make(self) -> None:
        """Write the rows of the steps that have ended. Any thread may call this. It does not raise an exception."""
        with self._making:
            if self.problem is None:
                try:
                    self._read_notes()
                    self._choose_looks()
                except Exception as error:  # training continues
                    self.end_for(error)
            if self.problem is not None:
                self.notes.clear()
            self.made_ns = time_ns()

    def end_for(self, error: Exception) -> None:
        """Stop writing rows, because of `error`.

        Only the text of `error` is kept, because the exception may reference a model and its results.
        """
        if self.problem is None:
            self.problem = type(error).__name__
            with suppress(Exception):  # an error may have no text
                self.problem = str(error) or self.problem

    def since(self, first: int) -> PulseSteps:
        """Return the finished steps that are still kept, from number `first` on. Any thread may call this."""
        self.make()
        with self._making:  # the training thread may have to wait for this lock
            rows = self._rows(first, self._words[_NUM_STEPS])
        return layout.decode_rows(PulseSteps, rows)

    def _rows(self, first: int, until: int) -> bytes:
        return b"".join(self._memory[begin:end] for begin, end in layout.STEPS.spans(first, until))

    def _read_notes(self) -> None:
        notes = self.notes
        spent_ns, activity, since_ns = self._spent_ns, self._activity, self._since_ns
        while notes:
            kind, value = notes.popleft()
            if kind < _NUM_ACTIVITIES:
                spent_ns[activity] += value - since_ns
                self._before_ns, since_ns, activity = since_ns, value, kind
                self._activity, self._since_ns = activity, since_ns
            elif kind == STEP_ENDED:
                self._end_step(value, since_ns)
                spent_ns = self._spent_ns
            elif kind == GRADIENTS:
                self._note_gradients(value, self._before_ns, since_ns)
            elif kind == NOTED_FLAGS:
                self._flags = value
            elif kind == WAITED:
                spent_ns[activity] -= value
                spent_ns[_BACKWARD] += value
                self._waited_ns += value

    def _choose_looks(self) -> None:
        """Choose how often gradient times are read.

        Torch returns a list of all gradient times. With very many gradients, or in very short steps, reading it in each
        step would slow down training too much.
        """
        num_steps = self._words[_NUM_STEPS] - self._chosen_at_step
        if num_steps >= _STEPS_OF_MEAN:
            length_ns = self._step_start_ns - self._chosen_at_ns
            if length_ns > 0:  # the clock was not set back
                self._looks_by_length = math.ceil(num_steps * _BETWEEN_LOOKS_NS / length_ns)
            self._chosen_at_step += num_steps
            self._chosen_at_ns = self._step_start_ns
        self.looks_every = max(1, self._num_gradients // _GRADIENTS_PER_LOOK, self._looks_by_length)

    def _note_gradients(self, gradients: _Gradients, begin_ns: int, end_ns: int) -> None:
        """Record how long a backward pass waited after its last gradient, if torch's times belong to this pass."""
        self._num_gradients = max(self._num_gradients, *(len(came_ns) for came_ns, _, _ in gradients))
        if not all(came_ns for came_ns, _, _ in gradients):
            return
        first_ns = min(earliest_ns + min(came_ns) for came_ns, earliest_ns, _ in gradients)
        last_ns = max(earliest_ns + max(came_ns) for came_ns, earliest_ns, _ in gradients)
        if begin_ns <= max(latest_ns + max(came_ns) for came_ns, _, latest_ns in gradients) and last_ns <= end_ns:
            self._wait_ns = end_ns - max(begin_ns, last_ns) + max(self._wait_ns, 0)
            self._first_gradient_ns = max(0, first_ns - begin_ns)

    def _end_step(self, number: int, end_ns: int) -> None:
        layout.STEPS.row.pack_into(
            self._memory,
            layout.STEPS.place(number),
            number,
            self._step_start_ns,
            end_ns - self._step_start_ns,
            *self._spent_ns[_OTHER + 1 :],  # data, forward, backward, optimizer, save and evaluation
            self._wait_ns if self._wait_ns == UNKNOWN else self._wait_ns + self._waited_ns,
            self._first_gradient_ns,
            self._flags,
        )
        self._words[_NUM_STEPS] = number + 1
        self._step_start_ns = end_ns
        self._begin_step()
        if number + 1 - self._summarized_until >= self._steps_per_summary:
            self._summarize(number + 1)

    def _summarize(self, num_steps: int) -> None:
        """Add a summary of the steps since the last summary. If no space is left, first merge pairs of summaries."""
        first, self._summarized_until = self._summarized_until, num_steps
        steps = layout.decode_rows(PulseSteps, self._rows(first, num_steps))
        if self._num_summaries == layout.NUM_SUMMARIES_KEPT:
            self._halve_summaries()
        at = layout.SUMMARIES_AT + self._num_summaries * layout.SUMMARY.size
        layout.SUMMARY.pack_into(self._memory, at, *summary_of(steps, self.memory_bytes))
        self._num_summaries += 1
        write_state(self._words, "num_summaries", self._num_summaries)

    def _halve_summaries(self) -> None:
        content = self._memory[layout.SUMMARIES_AT : layout.SAMPLES.at]
        halved = layout.encode_rows(joined(layout.decode_rows(PulseSummaries, content)))
        self._num_summaries //= 2
        self._steps_per_summary = min(2 * self._steps_per_summary, layout.NUM_STEPS_KEPT)
        write_state(self._words, "num_summaries", self._num_summaries)
        write_state(self._words, "steps_per_summary", self._steps_per_summary)
        self._memory[layout.SUMMARIES_AT : layout.SUMMARIES_AT + len(halved)] = halved


_ACTIVITY, _SINCE = state_word("activity"), state_word("since_ns")
_STEP, _STEP_SINCE = state_word("step"), state_word("step_since_ns")
_NUM_PASSES, _FLAGS = state_word("num_passes"), state_word("flags")
_NONFINITE_STEP, _NUM_NONFINITE = state_word("nonfinite_step"), state_word("num_nonfinite")
_UNPAIRED_STEP, _NUM_UNPAIRED = state_word("unpaired_step"), state_word("num_unpaired")
_OTHER, _DATA = int(Activity.OTHER), int(Activity.DATA)
_BACKWARD, _OPTIMIZER, _SAVE = int(Activity.BACKWARD), int(Activity.OPTIMIZER), int(Activity.SAVE)
_COMPILED = int(StepFlag.COMPILED)
_COMPILES_NS = 1_000_000
"""torch.compile needs far more than this time in ns to compile a function, so shorter steps are not checked"""
_GOLDEN = 0x9E3779B1
"""first 32 bits of the golden ratio; with its multiples, one in n steps is selected evenly, even if training is
periodic
"""
_PATIENCE_NS = 1_000_000_000
"""if `PulseKeeper` has written no rows for this time in ns because it waits for a disk, the training thread
writes them
"""
_MOST_NOTES = 10_000
"""if there are more notes than this, the training thread writes rows during a step, for example in a long evaluation"""


class PulseWriter(Listener):
    """Writes the pulse of one rank in its training thread. Call `close` last."""

    may_raise = False

    __slots__ = (
        "_file",
        "_finite_step",
        "_flags",
        "_forwards",
        "_last_nonfinite",
        "_looks",
        "_note",
        "_num_compiled",
        "_num_forwards",
        "_num_passes",
        "_passes_before",
        "_reduces",
        "_usual_unpaired",
        "identity",
        "memory",
        "reads_losses",
        "rows",
        "training_clock",
        "training_thread",
        "words",
    )

    def __init__(
        self, identity: PulseIdentity, training_thread: int, num_passes: int = 0, clock: int | None = None
    ) -> None:
        """Create the pulse in memory. If `identity` has no path in shared memory, other processes see only its copy.

        `num_passes`: number of synchronizing backward passes so far. `clock`: ID of the training thread's CPU clock; if
        it is not given, the thread must exist.

        Raises ``OSError``, for example if ``/dev/shm`` is full or absent, and ``ValueError`` on a big-endian machine.
        """
        if sys.byteorder != "little":
            raise ValueError("this machine is big-endian")
        self.identity = identity
        self.trains_in(training_thread, pthread_getcpuclockid(training_thread) if clock is None else clock)
        begin = _encoded(identity) + layout.pack(layout.empty_state())
        self._file: int | None = None
        if identity.shared:
            # All memory is allocated now. If it ran out later, a write would end the training with SIGBUS.
            self._file = own_files.create_locked(Path(identity.shared), layout.NUM_BYTES, begin)
        self.memory = mmap.mmap(-1 if self._file is None else self._file, layout.NUM_BYTES)
        self.memory[: len(begin)] = begin
        self.words = memoryview(self.memory).cast("q")
        """`memory` as an array of 64-bit integers"""
        now = time_ns()
        self.rows = PulseRows(self.memory, self.words, identity.first_step, now)
        self._note = self.rows.notes.append
        self._flags = 0
        self._num_compiled = num_compiled()
        self._num_passes = self._passes_before = num_passes
        """number of synchronizing backward passes so far, and before this step"""
        self._num_forwards = 0
        """number of synchronizing forward passes in this step"""
        self._usual_unpaired: int | None = None
        """smallest excess of forward passes over backward passes in any step so far"""
        self._finite_step = self._last_nonfinite = UNKNOWN
        """number of the last step with a finite loss, and number of the last step with a NaN or infinite loss, among
        the losses read
        """
        self._reduces = False
        """whether the next backward pass reduces gradients"""
        self._forwards: list[tuple[Any, int, int]] = []
        """for each module whose gradients the next backward pass reduces: its reducer, and the earliest and latest
        possible zero point of the gradient times; empty if they are not read in this step
        """
        self._looks = True
        """whether gradient times are read in this step; see `PulseRows.looks_every`"""
        self.reads_losses = True
        """False while the profiler runs, because reading a loss would appear in the trace as an op of the script"""
        self.begins(_OTHER)
        self.words[_NUM_PASSES] = num_passes
        self.words[_STEP] = identity.first_step
        self.words[_STEP_SINCE] = now

    def trains_in(self, thread: int, clock: int) -> None:
        """Set the ID of the training thread, and the ID of its CPU clock."""
        self.training_thread, self.training_clock = thread, clock

    def identify(self, identity: PulseIdentity) -> None:
        """Write to which rank and run the pulse belongs."""
        self.identity = identity
        self.memory[: layout.HEAD_BYTES] = _encoded(identity)

    def begins(self, activity: int) -> None:
        now = time_ns()
        self._note((activity, now))
        words = self.words
        words[_ACTIVITY] = activity
        words[_SINCE] = now

    def waited(self, what: object, began_ns: int) -> None:
        """Record how long the training thread has waited for other ranks.

        The time is counted as backward time, which includes all waiting for all-reduces. Within a backward pass,
        nothing is recorded, because gradient times already show the waiting.
        """
        if self.words[_ACTIVITY] != _BACKWARD:
            self._note((WAITED, time_ns() - began_ns))

    def fetch_begins(self) -> None:
        self.begins(_DATA)

    def fetch_ends(self) -> None:
        self.begins(_OTHER)

    def loader_runs_out(self, iterator: Any) -> None:
        if get_ident() == self.training_thread:
            self.flagged(StepFlag.RAN_OUT)

    def save_begins(self, target: Any) -> None:
        if get_ident() == self.training_thread:
            self.flagged(StepFlag.SAVED)
            self.begins(_SAVE)

    def save_ends(self) -> None:
        """Record the end of saving, unless another activity has begun in the meantime."""
        if get_ident() == self.training_thread and self.words[_ACTIVITY] == _SAVE:
            self.begins(_OTHER)

    def forward_ends(self, ddp: DistributedDataParallel, inner_end_ns: int, outputs: Any) -> None:
        """Record the end of a DDP module's forward pass.

        If the gradients will be reduced, their times are relative to the end of the wrapped module's forward pass. On
        an accelerator, gradient times are meaningless, because the host does not wait for the device.
        """
        self.begins(_OTHER)
        try:
            if ddp.require_backward_grad_sync and is_grad_enabled():
                self._reduces = True
                self._num_forwards += 1
                if self._looks:
                    reducer = ddp.reducer if ddp.device_type == "cpu" else None
                    self._forwards.append((reducer, inner_end_ns, self.words[_SINCE]))
        except Exception as error:  # training continues
            self.rows.end_for(error)

    def forward_fails(self, ddp: DistributedDataParallel, error: BaseException) -> None:
        if ddp.require_backward_grad_sync and is_grad_enabled():
            self._num_forwards += 1

    def backward_begins(self, loss: Any) -> None:
        """Record the beginning of a backward pass, and whether its loss is NaN or infinite."""
        self.begins(_BACKWARD)
        if self._reduces:
            self._reduces = False
            self._num_passes += 1
            self.words[_NUM_PASSES] = self._num_passes
        try:  # the loss is read only on CPU, so that training does not wait for it
            if self.reads_losses and type(loss) is Tensor and loss.is_cpu:
                value = loss.item()
                if value - value == 0:  # the loss is finite
                    self._finite_step = self.words[_STEP]
                else:
                    self._note_nonfinite(self.words[_STEP])
        except Exception:  # the loss is not a single value, or torch is in a mode in which it cannot be read
            return

    def _note_nonfinite(self, step: int) -> None:
        if self._last_nonfinite == step:  # in another backward pass
            return
        self._last_nonfinite = step
        if self.words[_NUM_NONFINITE] == 0:
            self.words[_NONFINITE_STEP] = step
            write_state(self.words, "finite_step", self._finite_step)
        self.words[_NUM_NONFINITE] += 1

    def backward_ends(self) -> None:
        """Record the end of a backward pass, and when its gradients were ready."""
        self.begins(_OTHER)
        if self._forwards:
            forwards, self._forwards = self._forwards, []
            gradients = []
            try:
                for reducer, end_ns, noted_ns in forwards:
                    came_ns = () if reducer is None else reducer.get_backward_stats()
                    gradients.append((came_ns, end_ns, noted_ns))
            except Exception as error:  # training continues
                self.rows.end_for(error)
            self._note((GRADIENTS, gradients))

    def optimizer_begins(self, optimizer: Any) -> None:
        self.begins(_OPTIMIZER)

    def flagged(self, flag: int) -> None:
        self._flags |= flag
        self.words[_FLAGS] = self._flags
        if len(self.rows.notes) > _MOST_NOTES:
            self.rows.make()

    def step_ends(self, num_steps: int) -> None:
        self.begins(_OTHER)
        words = self.words
        now = words[_SINCE]
        if now - words[_STEP_SINCE] > _COMPILES_NS and (compiled := num_compiled()) != self._num_compiled:
            self._num_compiled = compiled
            self._flags |= _COMPILED
        if self._flags:
            self._note((NOTED_FLAGS, self._flags))
            self._flags = words[_FLAGS] = 0
        self._note((STEP_ENDED, num_steps - 1))
        unpaired = self._num_forwards + self._passes_before - self._num_passes
        if unpaired != self._usual_unpaired:
            self._note_unpaired(num_steps - 1, unpaired)
        self._num_forwards, self._passes_before = 0, self._num_passes
        words[_STEP] = num_steps
        words[_STEP_SINCE] = now
        self._reduces = False
        if self._forwards:
            self._forwards = []
        every = self.rows.looks_every
        self._looks = every == 1 or num_steps * _GOLDEN % 2**32 * every < 2**32
        if now - self.rows.made_ns > _PATIENCE_NS:
            self.rows.make()

    def _note_unpaired(self, step: int, unpaired: int) -> None:
        if self._usual_unpaired is None or unpaired < self._usual_unpaired:
            self._usual_unpaired = unpaired
            return
        if self.words[_NUM_UNPAIRED] == 0:
            self.words[_UNPAIRED_STEP] = step
        self.words[_NUM_UNPAIRED] += unpaired - self._usual_unpaired

    def state(self) -> PulseState:
        """Return the current state. Any thread may call this."""
        return layout.decode_state(self.memory[layout.STATE_AT : layout.STATE_AT + layout.STATE.size])

    @property
    def num_passes(self) -> int:
        """Number of synchronizing backward passes so far."""
        return self._num_passes

    @property
    def num_nonfinite(self) -> int:
        """Number of steps so far with a NaN or infinite loss."""
        return self.words[_NUM_NONFINITE]

    def ends_as(self, ended: Ended, exits: bool = False) -> None:
        """Record how training ended and whether the process is exiting."""
        write_state(self.words, "exits", exits)
        write_state(self.words, "ended", ended)
        write_state(self.words, "ended_ns", time_ns())

    def step_starts_ns(self, most: int) -> list[int]:
        """Return the start times of the last `most` finished steps and the current step, in ns since 1970, in order."""
        self.rows.make()
        steps = layout.decode(self.memory[:]).steps
        return [*steps.start_ns[-most:].tolist(), self.words[_STEP_SINCE]]

    def close(self) -> None:
        """Remove the pulse from memory, but keep its copy in the run directory. Nothing is recorded afterwards."""
        if self._file is not None:
            own_files.remove_file(Path(self.identity.shared))
            os.close(self._file)


def _encoded(identity: PulseIdentity) -> bytes:
    return layout.encode_head(identity).ljust(layout.HEAD_BYTES, b"\0")
