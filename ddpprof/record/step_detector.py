"""Where does a training step end? This is found without the user's help.

    an optimizer steps         the step ends when the *anchor* optimizer has stepped, the last one to be seen for the
                               first time; so a GAN's `d.step(); g.step()`, or five critic steps and one generator
                               step, are one training step
    models take turns          where two optimizers each step several times in a row, steps end with both
    DDP is never called        the step ends with the anchor optimizer, too, though nothing synchronises the ranks
    no optimizer exists        the step ends when a DDP module that has synchronised begins its next forward
    the user calls `step()`    from then on nothing else ends a step

A step contains at least one synchronising forward, so gradient accumulation under `no_sync`, and optimizers that step
parameter by parameter inside the backward pass, count once. Every rank sees the same calls, so all ranks count alike.
"""

from __future__ import annotations

from collections.abc import Callable

_ANCHOR_LOST_AFTER = 50
"""number of steps of another optimizer after which an anchor that no longer steps is given up"""


class StepDetector:
    def __init__(self, any_optimizer_alive: Callable[[], bool]) -> None:
        self._any_optimizer_alive = any_optimizer_alive
        self._explicit = False
        self._seen: set[int] = set()
        self._anchor: int | None = None
        self._since_anchor = 0
        self._in_turns: set[int] = set()
        """optimizers whose last turn had several steps, each after a synchronising forward, since the anchor's first"""
        self._is_turn = False
        """whether the optimizer's turn that goes on has had several steps"""
        self._last = 0
        self._synchronised_since_last = False
        self._synchronised: set[int] = set()
        self._has_synchronised = False
        self._needs_forward = True
        self._without_optimizer: bool | None = None
        self.num_optimizer_steps = 0

    def step_marked(self) -> bool:
        """Handle the user's mark of the end of a step; return True if the step ends now.

        The first mark may follow an optimizer that has just ended that step, and no step ends before the ranks have
        first synchronised.
        """
        ends = bool(self._synchronised) or (self._explicit and self._has_synchronised)
        self._explicit = True
        self._synchronised.clear()
        return ends

    def steps_without_forward(self) -> None:
        """End steps without a forward of DDP, too, until the first one."""
        self._needs_forward = False

    def forward_begins(self, module: int, synchronises: bool) -> bool:
        """Handle the beginning of a DDP forward with gradients; return True if a step ended just before it."""
        ended = module in self._synchronised and self._steps_end_at_forward()
        if ended:
            self._synchronised.clear()
        if synchronises:
            self._needs_forward = True
            self._synchronised.add(module)
            self._has_synchronised = self._synchronised_since_last = True
        return ended

    def optimizer_stepped(self, optimizer: int) -> bool:
        """Handle an optimizer's step; return True if a step ended with it."""
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
        elif self._synchronised_since_last:
            self._is_turn = True
            self._in_turns.add(optimizer)
        self._last, self._synchronised_since_last = optimizer, False
        if not self._ends_steps(optimizer) or (self._needs_forward and not self._synchronised):
            return False
        self._synchronised.clear()
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
