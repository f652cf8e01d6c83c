"""CUDA graphs: no step may end during a capture, and a graph of whole steps hides them when it is replayed."""

from __future__ import annotations

from ddpprof.record.device import TrainingDevice

_HIDES_STEPS = 3
"""number of replays without the end of a step, from which a graph must hold whole steps"""


class Graphs:
    def __init__(self, device: TrainingDevice) -> None:
        self._device = device
        self.num_replays = 0
        self._since_step = 0
        self._most_in_step = 0

    @property
    def captured(self) -> bool:
        return self._device.is_captured

    def capture_begins(self) -> None:
        self._device.is_captured = True

    def capture_ends(self) -> None:
        self._device.is_captured = False

    def replays(self) -> None:
        self.num_replays += 1
        self._since_step += 1

    def step_ends(self) -> None:
        self._most_in_step = max(self._most_in_step, self._since_step)
        self._since_step = 0

    @property
    def hide_steps(self) -> bool:
        """Whether replays continue where steps, with at most as many replays, used to end."""
        return self._since_step >= _HIDES_STEPS * max(1, self._most_in_step)
