"""The pulse of this rank: notes of what the training thread does, in memory that outlives the process.

Every note is a write of words into mapped memory: no system call, no lock, and nothing that could block or raise. Torch
is asked for the value of a loss, if that is on CPU. Code that runs once in a step is never warm, so that it is short,
and calls few things. The memory is ``/dev/shm``, since a mapped file on a disk would end the training with SIGBUS if
somebody truncated it. `PulseKeeper` does all else in a thread of its own.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpprof import own_files
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Activity, Ended, PulseIdentity, PulseSteps, PulseSummaries, joined, summary_of
from ddpprof.model.pulse_layout import state_word

_ACTIVITY, _SINCE = state_word("activity"), state_word("since_ns")
_STEP, _STEP_SINCE = state_word("step"), state_word("step_since_ns")
_NUM_STEPS, _NUM_PASSES, _FLAGS = state_word("num_steps"), state_word("num_passes"), state_word("flags")
_NONFINITE_STEP, _NUM_NONFINITE = state_word("nonfinite_step"), state_word("num_nonfinite")
_ROWS, _ROW = layout.STEPS_AT // 8, layout.STEP.size // 8
_OTHER, _BACKWARD = int(Activity.OTHER), int(Activity.BACKWARD)
_NUM_ACTIVITIES = len(Activity)
_GRADIENTS_PER_LOOK = 400
"""number of gradients whose times a step may look at, which takes some 10 µs"""
_GOLDEN = 0x9E3779B1
"""the golden ratio's first 32 bits, whose multiples choose every n-th step evenly, but in no rhythm of the training"""


class PulseWriter:
    """The pulse of one rank, written by its training thread. `close` comes last."""

    def __init__(self, identity: PulseIdentity, training_thread: int) -> None:
        """Create the pulse in memory. Raises ``OSError``, also if the memory is full or absent, and ``ValueError``."""
        if sys.byteorder != "little":
            raise ValueError("this machine stores numbers with the highest byte first")
        self.identity = identity
        self._training_thread = training_thread
        begin = layout.encode_head(identity).ljust(layout.HEAD_BYTES, b"\0") + layout.pack(layout.empty_state())
        # All of it is in place at once: in full memory, a later write would end the training with SIGBUS.
        self._file = own_files.create_locked(Path(identity.shared), layout.NUM_BYTES, begin)
        self.memory = mmap.mmap(self._file, layout.NUM_BYTES)
        self.words = memoryview(self.memory).cast("q")
        """the same memory as integers"""
        self._activity = int(Activity.OTHER)
        self._since_ns = self._step_start_ns = time.time_ns()
        self._spent_ns = [0] * _NUM_ACTIVITIES
        self._flags = 0
        self._wait_ns = self._first_gradient_ns = UNKNOWN
        self._waited_ns = 0
        """time in this step for which the training thread waited for other ranks outside backward passes"""
        self._num_passes = 0
        self._finite_step = self._last_nonfinite = UNKNOWN
        """numbers of the last step with a finite loss, and of the last one with another"""
        self._reduces = False
        """whether the next backward pass reduces gradients"""
        self._forwards: list[tuple[Any, int, int]] = []
        """reducers of the modules whose gradients it reduces, if this step looks at them; their times count from a
        moment between these two"""
        self._looks_every = 1
        self._looks = True
        """whether this step looks at when gradients came"""
        self._num_summaries, self._steps_per_summary = 0, layout.STEPS_PER_SUMMARY
        self._summarised_until = identity.first_step
        self.memory_bytes = UNKNOWN
        """resident memory at the last sample, which `PulseKeeper` takes"""
        self._write("num_steps", identity.first_step)
        self._step_begins(identity.first_step, self._since_ns)

    def _write(self, name: str, value: int) -> None:
        self.words[state_word(name)] = value

    def begins(self, activity: int) -> None:
        """Note that the training thread begins another activity, which ends the one before."""
        now = time.time_ns()
        self._spent_ns[self._activity] += now - self._since_ns
        self._activity = activity
        self._since_ns = now
        words = self.words
        words[_ACTIVITY] = activity
        words[_SINCE] = now

    def ends(self, activity: int) -> None:
        """Note that an activity is over, unless another has begun in the meantime."""
        if self._activity == activity:
            self.begins(_OTHER)

    def waits(self, original: Callable[..., Any], /, *work: Any, **kwargs: Any) -> Any:
        """Call what waits for other ranks, such as DDP's broadcast of buffers, and note for how long it does.

        The time counts as that of backward passes, which have all other waiting. In a backward pass nothing is noted:
        there the times of gradients tell. Other threads wait unseen.
        """
        if get_ident() != self._training_thread:
            return original(*work, **kwargs)
        began_ns, before_ns = time.time_ns(), self._waited_ns
        try:
            return original(*work, **kwargs)
        finally:
            if self._activity != _BACKWARD:
                within_ns = self._waited_ns - before_ns
                waited_ns = time.time_ns() - began_ns - within_ns
                self._spent_ns[self._activity] -= waited_ns
                self._spent_ns[_BACKWARD] += waited_ns
                self._waited_ns += waited_ns

    def forward_ends(self, ddp: DistributedDataParallel, inner_end_ns: int) -> None:
        """Note the end of a forward of a DDP module, whose own part ended at `inner_end_ns`.

        If the gradients are to be reduced, their times count from then; on an accelerator, for which the host does not
        wait, they say nothing.
        """
        self.begins(_OTHER)
        if ddp.require_backward_grad_sync and torch.is_grad_enabled():
            self._reduces = True
            if self._looks:
                reducer = ddp.reducer if ddp.device_type == "cpu" else None
                self._forwards.append((reducer, inner_end_ns, self._since_ns))

    def backward_begins(self, loss: Any) -> None:
        """Note the begin of a backward pass, and whether its loss is NaN or infinite; ``None`` is not looked at."""
        self.begins(_BACKWARD)
        if self._reduces:
            self._reduces = False
            self._num_passes += 1
            self.words[_NUM_PASSES] = self._num_passes
        self._look_at(loss)

    def _look_at(self, loss: Any) -> None:
        """Note whether a loss is NaN or infinite, unless the training would have to wait for it."""
        try:
            if type(loss) is not torch.Tensor or not loss.is_cpu:
                return
            if isfinite(loss.item()):
                self._finite_step = self.words[_STEP]
                return
        except Exception:  # it has no value, or several, or stands within a mode of torch that lets nothing be computed
            return
        self._note_nonfinite(self.words[_STEP])

    def _note_nonfinite(self, step: int) -> None:
        if self._last_nonfinite == step:  # in another backward pass
            return
        self._last_nonfinite = step
        if self.words[_NUM_NONFINITE] == 0:
            self.words[_NONFINITE_STEP] = step
            self._write("finite_step", self._finite_step)
        self.words[_NUM_NONFINITE] += 1

    def backward_ends(self) -> None:
        """Note the end of a backward pass: from its last gradient on, nothing was left but to wait for the reduction.

        Torch makes a list of all gradients' times, which takes longer the more there are, so that with very many only
        some of the steps know it.
        """
        begin_ns = self._since_ns
        self.begins(_OTHER)
        if self._forwards:
            self._look_at_gradients(begin_ns)

    def _look_at_gradients(self, begin_ns: int) -> None:
        """Note when the gradients of the backward pass came that began at `begin_ns` and has just ended."""
        forwards, self._forwards = self._forwards, []
        first_ns = last_ns = latest_ns = 0
        for reducer, end_ns, noted_ns in forwards:
            if reducer is None:
                return
            came_ns = reducer.get_backward_stats() or (0,)
            after_ns = max(came_ns)
            last_ns = max(last_ns, end_ns + after_ns)
            latest_ns = max(latest_ns, noted_ns + after_ns)
            came = end_ns + min(came_ns)
            first_ns = min(first_ns, came) if first_ns else came
            self._looks_every = max(1, len(came_ns) // _GRADIENTS_PER_LOOK)
        if begin_ns <= latest_ns and last_ns <= self._since_ns:
            waited = self._since_ns - max(begin_ns, last_ns)
            self._wait_ns = waited if self._wait_ns == UNKNOWN else self._wait_ns + waited
            self._first_gradient_ns = max(0, first_ns - begin_ns)

    def flag(self, flag: int) -> None:
        """Note what makes the current step a special one."""
        self._flags |= flag
        self.words[_FLAGS] = self._flags

    def step_ends(self, num_steps: int) -> None:
        """Note that a step has ended, and that `num_steps` are over."""
        self.begins(_OTHER)
        now, spent, words = self._since_ns, self._spent_ns, self.words
        at = _ROWS + (num_steps - 1) % layout.NUM_STEPS_KEPT * _ROW
        for value in (
            num_steps - 1,
            self._step_start_ns,
            now - self._step_start_ns,
            *spent[_OTHER + 1 :],  # data, forward, backward, optimizer, save and evaluation, as in `PulseSteps`
            self._wait_ns if self._wait_ns == UNKNOWN else self._wait_ns + self._waited_ns,
            self._first_gradient_ns,
            self._flags,
        ):
            words[at] = value
            at += 1
        words[_NUM_STEPS] = num_steps
        self._spent_ns = [0] * _NUM_ACTIVITIES
        self._wait_ns = self._first_gradient_ns = UNKNOWN
        self._waited_ns = 0
        if self._flags:
            self._flags = words[_FLAGS] = 0
        self._reduces = False
        self._forwards.clear()
        if self._looks_every > 1:
            self._looks = num_steps * _GOLDEN % 2**32 * self._looks_every < 2**32
        self._step_begins(num_steps, now)
        if num_steps - self._summarised_until >= self._steps_per_summary:
            self._summarise(num_steps)

    def _step_begins(self, number: int, now_ns: int) -> None:
        self._step_start_ns = now_ns
        self.words[_STEP] = number
        self.words[_STEP_SINCE] = now_ns

    def _summarise(self, num_steps: int) -> None:
        """Add a summary of the steps since the last one. A pair of summaries becomes one each time they are full."""
        first, self._summarised_until = self._summarised_until, num_steps
        spans = layout.ring_spans(first, num_steps, layout.NUM_STEPS_KEPT, layout.STEPS_AT, layout.STEP.size)
        steps = layout.decode_rows(PulseSteps, b"".join(self.memory[begin:end] for begin, end in spans))
        if self._num_summaries == layout.NUM_SUMMARIES_KEPT:
            self._halve_summaries()
        at = layout.SUMMARIES_AT + self._num_summaries * layout.SUMMARY.size
        layout.SUMMARY.pack_into(self.memory, at, *summary_of(steps, self.memory_bytes))
        self._num_summaries += 1
        self._write("num_summaries", self._num_summaries)

    def _halve_summaries(self) -> None:
        content = self.memory[layout.SUMMARIES_AT : layout.SAMPLES_AT]
        halved = layout.encode_rows(joined(layout.decode_rows(PulseSummaries, content)))
        self._num_summaries //= 2
        self._steps_per_summary = min(2 * self._steps_per_summary, layout.NUM_STEPS_KEPT)
        self._write("num_summaries", self._num_summaries)
        self._write("steps_per_summary", self._steps_per_summary)
        self.memory[layout.SUMMARIES_AT : layout.SUMMARIES_AT + len(halved)] = halved

    def ends_as(self, ended: Ended) -> None:
        """Note how the training ended."""
        self._write("ended", ended)
        self._write("ended_ns", time.time_ns())

    def step_starts_ns(self, most: int) -> list[int]:
        """Return when the last steps began, up to `most` that are over and the current one, in order."""
        steps = layout.decode(self.memory[:]).steps
        return [*steps.start_ns[-most:].tolist(), self._step_start_ns]

    def close(self) -> None:
        """Remove the pulse from memory; its copy in the run directory stays. Nothing may be noted afterwards."""
        own_files.remove_file(Path(self.identity.shared))
        os.close(self._file)
