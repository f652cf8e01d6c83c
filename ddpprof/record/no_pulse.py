"""A rank without a pulse notes only how many steps it has finished, in a file."""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns
from typing import Any

from ddpprof.record.output import LastStep


class NoPulse:
    """A stand-in for `PulseWriter` where there is none. A method that is given an original calls it."""

    def __init__(self, last_step: LastStep | None = None) -> None:
        self._last_step = last_step

    def begins(self, _activity: int) -> None:
        return

    def ends(self, _activity: int) -> None:
        return

    def flag(self, _flag: int) -> None:
        return

    def work_waits(self, original: Callable[..., Any], /, *work: Any, **kwargs: Any) -> Any:
        return original(*work, **kwargs)

    def loader_fetches(self, original: Callable[..., Any], iterator: Any) -> Any:
        return original(iterator)

    def ddp_post_forward(self, original: Callable[..., Any], ddp: Any, output: Any) -> Any:
        return original(ddp, output)

    def backward_begins(self, _loss: Any) -> bool:
        return False

    def backward_is_over(self) -> None:
        return

    def optimizer_begins(self, _args: Any, _kwargs: Any) -> None:
        return

    def step_ends(self, num_steps: int) -> None:
        """Note that `num_steps` are over. Raises ``OSError``."""
        if self._last_step is not None:
            self._last_step.is_over(num_steps, time_ns())
