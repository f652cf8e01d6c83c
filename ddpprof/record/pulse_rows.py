"""The notes of the training thread become the rows of this rank's pulse.

The training thread only lists notes, and the rows are made in another thread, many at once: code that runs once in a
step is slow, since nothing of it is in the processor's caches.
"""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from time import time_ns
from typing import Any

from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Activity, PulseSteps, PulseSummaries, joined, summary_of
from ddpprof.model.pulse_layout import state_word, write_state

_NUM_ACTIVITIES = len(Activity)
_NUM_STEPS = state_word("num_steps")
_OTHER, _BACKWARD = int(Activity.OTHER), int(Activity.BACKWARD)


# A note has a kind, which tells what its value means. If the kind is an `Activity` instead of one of these four, the
# value is the time at which that begins.
WAITED = 8
"""ns of waiting for other ranks outside backward passes, within the current activity"""
GRADIENTS = 9
"""When gradients came in the backward pass that has just ended, for each module: ns from torch's own origin (empty
if unknown), and two times that the origin lies between."""
NOTED_FLAGS = 10
"""`StepFlag` of the current step"""
STEP_ENDED = 11
"""number of the step that ended when the current activity began"""

_Gradients = Sequence[tuple[Sequence[int], int, int]]
_GRADIENTS_PER_LOOK = 400
"""number of gradients whose times a step may look at, which takes some 10 µs"""
_BETWEEN_LOOKS_NS = 2_000_000
"""time that a step takes at least if each one looks"""
_STEPS_OF_MEAN = 16
"""number of steps whose mean length counts, at least"""


class PulseRows:
    """The rows and summaries in the memory of one pulse."""

    def __init__(self, memory: mmap.mmap, words: memoryview[int], first_step: int, begin_ns: int) -> None:
        """The first step begins at `begin_ns`."""
        self._memory, self._words = memory, words
        self.notes: deque[tuple[int, Any]] = deque()
        """kinds and values of notes, to which any thread may append"""
        self.problem: str | None = None
        """why no more rows are made"""
        self._making = Lock()
        self._num_summaries, self._steps_per_summary = 0, layout.STEPS_PER_SUMMARY
        self._summarised_until = first_step
        self.memory_bytes = UNKNOWN
        """resident memory at the last sample"""
        self.looks_every = 1
        """number of steps of which one looks at when its gradients came"""
        self._looks_by_length = 1
        """least `looks_every` for steps of this length"""
        self._chosen_at_step, self._chosen_at_ns = first_step, begin_ns
        """step at which it was last chosen, and when that began"""
        self._num_gradients = 0
        """most gradients that a module has had in a backward pass"""
        self._activity = _OTHER
        self._before_ns = self._since_ns = self._step_start_ns = begin_ns
        self._begin_step()
        words[_NUM_STEPS] = first_step
        self.made_ns = time_ns()
        """when notes were last read"""

    def _begin_step(self) -> None:
        self._spent_ns = [0] * _NUM_ACTIVITIES
        self._wait_ns = self._first_gradient_ns = UNKNOWN
        self._waited_ns = self._flags = 0

    def make(self) -> None:
        """Make the rows of steps that have ended. Any thread may call this, and it does not raise."""
        with self._making:
            if self.problem is None:
                try:
                    self._read_notes()
                    self._choose_looks()
                except Exception as error:  # the training goes on
                    self.end_for(error)
            if self.problem is not None:
                self.notes.clear()
            self.made_ns = time_ns()

    def end_for(self, error: Exception) -> None:
        """Make no more rows. Of `error` only the words are kept: it may hold a model and its results."""
        if self.problem is None:
            self.problem = type(error).__name__
            with suppress(Exception):  # an error may be unable to say anything
                self.problem = str(error) or self.problem

    def since(self, first: int) -> PulseSteps:
        """Return the finished steps from number `first` on that are still kept. Any thread may call this."""
        self.make()
        with self._making:  # the training thread may wait for this
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
        """Choose how many steps look at when their gradients came.

        Torch makes a list of all these times. With very many gradients, or in very short steps, it would take too much
        of the training's time if each step looked.
        """
        num_steps = self._words[_NUM_STEPS] - self._chosen_at_step
        if num_steps >= _STEPS_OF_MEAN:
            length_ns = self._step_start_ns - self._chosen_at_ns
            if length_ns > 0:  # nobody has set the clock back
                self._looks_by_length = math.ceil(num_steps * _BETWEEN_LOOKS_NS / length_ns)
            self._chosen_at_step += num_steps
            self._chosen_at_ns = self._step_start_ns
        self.looks_every = max(1, self._num_gradients // _GRADIENTS_PER_LOOK, self._looks_by_length)

    def _note_gradients(self, gradients: _Gradients, begin_ns: int, end_ns: int) -> None:
        """Note how long a backward pass waited after its last gradient, unless torch tells of another pass."""
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
        if number + 1 - self._summarised_until >= self._steps_per_summary:
            self._summarise(number + 1)

    def _summarise(self, num_steps: int) -> None:
        """Add a summary of the steps since the last one. A pair of summaries becomes one each time they are full."""
        first, self._summarised_until = self._summarised_until, num_steps
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
