"""Detect where training steps end, and determine which steps are skipped, timed, recorded and profiled.

step   0 1 2 | 3 4 5 6 7 8 9 10      |              | 11     | 12 13 14 15 16 |            |         | 17 …
       skip  | off light off light … | (timed: off) | warmup | profiled       | (baseline) | (alone) | done

On an accelerator, at least eleven steps are skipped. In the first ten iterations of a reducer, and in every hundredth
iteration, torch waits for the device, and this distorts step times.
"""

from __future__ import annotations

from collections.abc import Callable

from ddpprof.model import StepMode
from ddpprof.ranks_and_steps import TORCH_WAITS, least_skipped
from ddpprof.record.settings import Settings

_SETTLE = 3
"""number of steps at the beginning of a block that are not timed, because DDP rebuilds its buckets and memory is
reallocated
"""


class Schedule:
    """Assigns a mode to each step."""

    def __init__(self, settings: Settings, on_accelerator: bool = False) -> None:
        self._cost_begin = max(settings.skip_first, least_skipped(on_accelerator))
        self._timed_begin = self._cost_begin + settings.cost_steps
        self._warmup_begin = self._timed_begin + settings.timed_steps
        self._profiled_begin = self._warmup_begin + (settings.warmup if settings.profiler else 0)
        self._baseline_begin = self._profiled_begin + settings.steps
        self._alone_begin = self._baseline_begin + (settings.baseline_steps if settings.profiler else 0)
        self._done_begin = self._alone_begin + settings.alone_steps
        self._profiled = StepMode.PROFILED if settings.profiler else StepMode.LIGHT
        self._settle = TORCH_WAITS if on_accelerator else _SETTLE
        self._block = self._settle + settings.block_steps
        self._num_block_steps = 2 * settings.ddp_blocks * self._block

    @property
    def num_skipped(self) -> int:
        """Number of skipped steps. There is at least one, because the ranks can agree only after a backward pass."""
        return self._cost_begin

    @property
    def num_steps(self) -> int:
        """Number of training steps that are needed for a complete recording."""
        return self._done_begin + self._num_block_steps

    @property
    def num_profiled(self) -> int:
        """Number of steps with the profiler on."""
        return self._alone_begin - self._warmup_begin

    @property
    def common_end(self) -> int:
        """First step that the ranks do not take together, because it has no communication or the job ends before it."""
        return self._baseline_begin

    def end_at_common_end(self) -> None:
        """End recording at `common_end`, because some ranks no longer record. Skips steps without communication."""
        self._alone_begin = self._done_begin = self._baseline_begin

    def without_profiler(self) -> None:
        """Replace profiling with light recording, because a profiler did not start or not all ranks record."""
        self._profiled_begin = self._warmup_begin
        self._done_begin -= self._alone_begin - self._baseline_begin
        self._alone_begin = self._baseline_begin
        self._profiled = StepMode.LIGHT

    def mode(self, step: int) -> StepMode:
        """Return the mode of step number `step`, counted from 0."""
        if step < self._cost_begin:
            return StepMode.SKIP
        if step < self._timed_begin:
            return self._cost_mode(step - self._cost_begin)
        if step < self._warmup_begin:
            return StepMode.OFF
        if step < self._profiled_begin:
            return StepMode.WARMUP
        if step < self._baseline_begin:
            return self._profiled
        if step < self._alone_begin:
            return StepMode.BASELINE
        return StepMode.ALONE if step < self._done_begin else self._mode_in_blocks(step)

    def _cost_mode(self, into: int) -> StepMode:
        """Return the mode of a step that measures overhead: recording is off, or light. The modes alternate. Pairs of
        steps begin with off in the first half of the steps, and with light in the second half.
        """
        num_steps = self._timed_begin - self._cost_begin
        begins_light = into // 2 * 4 >= num_steps
        return StepMode.LIGHT if (into % 2 == 1) != begins_light else StepMode.OFF

    def _mode_in_blocks(self, step: int) -> StepMode:
        if step >= self.num_steps:
            return StepMode.DONE
        if (step - self._done_begin) % self._block < self._settle:
            return StepMode.SKIP
        return StepMode.WITHOUT_DDP if self.is_without_ddp(step) else StepMode.OFF

    def is_without_ddp(self, step: int) -> bool:
        """Return True if DDP is disabled in step number `step`, whether the step is timed or not."""
        into = step - self._done_begin
        return 0 <= into < self._num_block_steps and into // self._block % 2 == 1


_ANCHOR_LOST_AFTER = 50
"""the anchor (see `StepDetector`) is replaced after this many consecutive steps of other optimizers"""


class StepDetector:
    """Detects where training steps end.

    A training step ends when the anchor optimizer steps. With several optimizers, the anchor is the optimizer that took
    its first step last. If optimizers take turns, with several training steps per turn, steps of every optimizer end
    training steps. Without an optimizer, a step ends before the next forward pass of the same DDP module.
    """

    def __init__(self, any_optimizer_alive: Callable[[], bool]) -> None:
        self._any_optimizer_alive = any_optimizer_alive
        self._explicit = False
        self._seen: set[int] = set()
        self._anchor: int | None = None
        self._since_anchor = 0
        self._in_turns: set[int] = set()
        """optimizers whose last turn had several steps, each after a synchronizing forward pass; a turn is a series of
        steps that no other optimizer interrupts. Emptied when a new optimizer becomes the anchor (see the class)
        """
        self._is_turn = False
        """whether the most recent optimizer has taken several steps in its current turn, each after a synchronizing
        forward pass
        """
        self._last = 0
        self._synchronized_since_last = False
        self._synchronized: set[int] = set()
        self._has_synchronized = False
        self._needs_forward = True
        self._without_optimizer: bool | None = None
        self.num_optimizer_steps = 0

    def step_marked(self) -> bool:
        """Handle a call that marks the end of a step. Return True if it ends a step.

        The first mark is ignored if an optimizer has just ended the step. No step ends before the ranks have
        synchronized for the first time.
        """
        ends = bool(self._synchronized) or (self._explicit and self._has_synchronized)
        self._explicit = True
        self._synchronized.clear()
        return ends

    def steps_without_forward(self) -> None:
        """Until the first DDP forward pass, allow steps to end without one."""
        self._needs_forward = False

    def forward_begins(self, module: int, synchronizes: bool) -> bool:
        """Handle the beginning of a DDP forward pass with gradients. Return True if a step ended just before it."""
        ended = module in self._synchronized and self._steps_end_at_forward()
        if ended:
            self._synchronized.clear()
        if synchronizes:
            self._needs_forward = True
            self._synchronized.add(module)
            self._has_synchronized = self._synchronized_since_last = True
        return ended

    def optimizer_stepped(self, optimizer: int) -> bool:
        """Handle an optimizer's step. Return True if a training step ended with it."""
        self.num_optimizer_steps += 1
        if self._explicit:
            return False
        self._without_optimizer = False
        if optimizer not in self._seen:
            self._seen.add(optimizer)
            self._anchor = optimizer
            self._in_turns.clear()
            self._is_turn = False
        elif optimizer != self._last:
            if not self._is_turn:
                self._in_turns.discard(self._last)
            self._is_turn = False
        elif self._synchronized_since_last:
            self._is_turn = True
            self._in_turns.add(optimizer)
        self._last, self._synchronized_since_last = optimizer, False
        if not self._ends_steps(optimizer) or (self._needs_forward and not self._synchronized):
            return False
        self._synchronized.clear()
        return True

    def _ends_steps(self, optimizer: int) -> bool:
        if optimizer == self._anchor or (optimizer in self._in_turns and self._anchor in self._in_turns):
            self._since_anchor = 0
            return True
        self._since_anchor += 1
        if self._since_anchor > _ANCHOR_LOST_AFTER:
            self._anchor, self._since_anchor = optimizer, 0
        return optimizer == self._anchor

    def _steps_end_at_forward(self) -> bool:
        if self._explicit:
            return False
        if self._without_optimizer is None:
            self._without_optimizer = not self._any_optimizer_alive()
        return self._without_optimizer
