"""CUDA graphs: while one is captured no step may end, and one that holds whole steps hides them when it is replayed."""

from __future__ import annotations

_HIDES_STEPS = 3
"""So many replays without the end of a step: a graph holds whole steps, or more are replayed in each."""


class Graphs:
    def __init__(self) -> None:
        self.captured = False
        """one is being captured: whoever waits for the device, or starts or stops the profiler, would break that"""
        self.num_replays = 0
        self._since_step = 0
        self._most_in_step = 0

    def capture_begins(self) -> None:
        self.captured = True

    def capture_ends(self) -> None:
        self.captured = False

    def replays(self) -> None:
        self.num_replays += 1
        self._since_step += 1

    def step_ends(self) -> None:
        self._most_in_step = max(self._most_in_step, self._since_step)
        self._since_step = 0

    @property
    def hide_steps(self) -> bool:
        """Whether replays go on where steps, with as many replays at most, used to end."""
        return self._since_step >= _HIDES_STEPS * max(1, self._most_in_step)
