"""Processor time of the code that ddpprof runs in the training thread, counted around it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any

from ddpprof.record.events import EVENTS

_WITHIN_OTHERS = {"begins", "flagged", "step_ends"}
"""events that listeners tell while they handle another"""


def _do_nothing(*_args: Any) -> None:
    return


class CountedEvents:
    """Counts the time of each event of watched steps in ns, some of its own included."""

    def __init__(self, hears: bool) -> None:
        """``hears=False``: ddpprof does not get these events, so that only the counting is counted."""
        self._step: dict[str, int] = defaultdict(int)
        self.steps: list[dict[str, int]] = []
        for name in EVENTS.heard - _WITHIN_OTHERS:  # the wrappers around torch ask the dispatcher each time
            event = getattr(EVENTS, name) if hears else _do_nothing
            setattr(EVENTS, name, self._counted(name, event))

    def end_step(self) -> None:
        """Keep what the events since the last call took."""
        self.steps.append(dict(self._step))
        self._step.clear()

    def _counted(self, name: str, event: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            first, begin = thread_time_ns(), thread_time_ns()
            result = event(*args)
            took_ns = thread_time_ns() - begin - (begin - first)
            self._step[name] += took_ns
            return result

        return counted


def by_event(steps: Sequence[dict[str, int]]) -> dict[str, list[int]]:
    """Return the times of each event, one for each step; events in the order in which they come."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: [step.get(name, 0) for step in steps] for name in names}
