"""The pulse of this rank: notes of what the training thread does, in memory that outlives the process.

Every note is a write into mapped memory: no system call, no lock, and nothing that could block or raise. The memory is
``/dev/shm``, since a mapped file on a disk would end the training with SIGBUS if somebody truncated it.
`PulseKeeper` does all else in a thread of its own.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

from ddpprof import own_files
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Activity, Ended, PulseIdentity, PulseSteps, PulseSummaries, joined, summary_of
from ddpprof.model.pulse_layout import state_offset

_PACK_ACTIVITY = struct.Struct("<qqq").pack_into
_AT_ACTIVITY = state_offset("beat_ns")
_PACK_ONE = struct.Struct("<q").pack_into
_PACK_STEP_BEGINS = struct.Struct("<qq").pack_into
_AT_STEP = state_offset("step")
_PACK_ROW = layout.STEP.pack_into
_OTHER, _BACKWARD = int(Activity.OTHER), int(Activity.BACKWARD)
_NUM_ACTIVITIES = len(Activity)
_GRADIENTS_PER_LOOK = 400
"""number of gradients whose times a step may look at, which takes some 10 µs"""


class PulseWriter:
    """The pulse of one rank, written by its training thread. `close` comes last."""

    def __init__(self, identity: PulseIdentity) -> None:
        """Create the pulse in memory. Raises ``OSError``, also if the memory is full or absent, and ``ValueError``."""
        self.identity = identity
        begin = layout.encode_head(identity).ljust(layout.HEAD_BYTES, b"\0") + layout.pack(layout.empty_state())
        # All of it is in place at once: in full memory, a later write would end the training with SIGBUS.
        self._file = own_files.create_locked(Path(identity.shared), layout.NUM_BYTES, begin)
        self.memory = mmap.mmap(self._file, layout.NUM_BYTES)
        self._activity = int(Activity.OTHER)
        self._since_ns = self._step_start_ns = time.time_ns()
        self._spent_ns = [0] * _NUM_ACTIVITIES
        self._flags = 0
        self._wait_ns = self._first_gradient_ns = UNKNOWN
        self._num_passes = 0
        self._forwards: list[tuple[Any, int, int]] = []
        """reducers of the modules whose gradients the next backward pass reduces; their times count from a moment
        between these two"""
        self._looks_every = 1
        self._cpu_ns = time.thread_time_ns()
        self._num_summaries, self._steps_per_summary = 0, layout.STEPS_PER_SUMMARY
        self._summarised_until = identity.first_step
        self.memory_bytes = UNKNOWN
        """resident memory at the last sample, which `PulseKeeper` takes"""
        self._write("num_steps", identity.first_step)
        self._step_begins(identity.first_step, self._since_ns)

    def _write(self, name: str, value: int) -> None:
        _PACK_ONE(self.memory, state_offset(name), value)

    def begins(self, activity: int) -> None:
        """Note that the training thread begins another activity, which ends the one before."""
        now = time.time_ns()
        self._spent_ns[self._activity] += now - self._since_ns
        self._activity, self._since_ns = activity, now
        _PACK_ACTIVITY(self.memory, _AT_ACTIVITY, now, activity, now)

    def ends(self, activity: int) -> None:
        """Note that an activity is over, unless another has begun in the meantime."""
        if self._activity == activity:
            self.begins(_OTHER)

    def forward_ends(self, reducer: Any, end_ns: int, synchronises: bool) -> None:
        """Note the end of a forward of a DDP module, whose own part ended at `end_ns`.

        `synchronises`: its gradients are to be reduced. Their times, counted from `end_ns`, are those of `reducer`;
        ``None`` on an accelerator, for which the host does not wait.
        """
        self.begins(_OTHER)
        if synchronises:
            self._forwards.append((reducer, end_ns, self._since_ns))

    def backward_begins(self) -> None:
        self.begins(_BACKWARD)
        if self._forwards:
            self._num_passes += 1
            _PACK_ONE(self.memory, _AT_PASSES, self._num_passes)

    def backward_ends(self) -> None:
        """Note the end of a backward pass: from its last gradient on, nothing was left but to wait for the reduction.

        Torch makes a list of all gradients' times, which takes longer the more there are, so that with very many only
        some of the steps know it.
        """
        begin_ns = self._since_ns
        self.begins(_OTHER)
        forwards, self._forwards = self._forwards, []
        if not forwards or self._num_passes % self._looks_every:
            return
        first_ns = last_ns = latest_ns = 0
        for reducer, end_ns, noted_ns in forwards:
            if reducer is None:
                return
            stats = reducer.get_backward_stats()
            last_ns = max(last_ns, end_ns + max(stats, default=0))
            latest_ns = max(latest_ns, noted_ns + max(stats, default=0))
            came = end_ns + min(stats, default=0)
            first_ns = min(first_ns, came) if first_ns else came
            self._looks_every = max(1, len(stats) // _GRADIENTS_PER_LOOK)
        if begin_ns <= latest_ns and last_ns <= self._since_ns:
            waited = self._since_ns - max(begin_ns, last_ns)
            self._wait_ns = waited if self._wait_ns == UNKNOWN else self._wait_ns + waited
            self._first_gradient_ns = max(0, first_ns - begin_ns)

    def flag(self, flag: int) -> None:
        """Note what makes the current step a special one."""
        self._flags |= flag
        _PACK_ONE(self.memory, _AT_FLAGS, self._flags)

    def step_ends(self, num_steps: int) -> None:
        """Note that a step has ended, and that `num_steps` are over."""
        self.begins(self._activity)
        now, number, spent, cpu_ns = self._since_ns, num_steps - 1, self._spent_ns, time.thread_time_ns()
        _PACK_ROW(
            self.memory,
            layout.STEPS_AT + number % layout.NUM_STEPS_KEPT * layout.STEP.size,
            number,
            self._step_start_ns,
            now - self._step_start_ns,
            *spent[_OTHER + 1 :],  # data, forward, backward, optimizer, save and evaluation, as in `PulseSteps`
            self._wait_ns,
            self._first_gradient_ns,
            cpu_ns - self._cpu_ns,
            self._flags,
        )
        self._cpu_ns = cpu_ns
        _PACK_ONE(self.memory, _AT_NUM_STEPS, num_steps)
        self._spent_ns = [0] * _NUM_ACTIVITIES
        self._flags = 0
        self._forwards.clear()
        _PACK_ONE(self.memory, _AT_FLAGS, 0)
        self._wait_ns = self._first_gradient_ns = UNKNOWN
        self._step_begins(num_steps, now)
        if num_steps - self._summarised_until >= self._steps_per_summary:
            self._summarise(num_steps)

    def _step_begins(self, number: int, now_ns: int) -> None:
        self._step_start_ns = now_ns
        _PACK_STEP_BEGINS(self.memory, _AT_STEP, number, now_ns)

    def _summarise(self, num_steps: int) -> None:
        """Add a summary of the steps since the last one. A pair of summaries becomes one each time they are full."""
        ring = layout.decode_rows(PulseSteps, self.memory[layout.STEPS_AT : layout.SUMMARIES_AT])
        steps = layout.rows_of(ring, self._summarised_until, num_steps)
        self._summarised_until = num_steps
        if not len(steps):
            return
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

    def close(self) -> None:
        """Remove the pulse from memory; its copy in the run directory stays. Nothing may be noted afterwards."""
        own_files.remove_file(Path(self.identity.shared))
        os.close(self._file)


_AT_NUM_STEPS = state_offset("num_steps")
_AT_PASSES = state_offset("num_passes")
_AT_FLAGS = state_offset("flags")
