"""Processor time of the code that ddpprof runs in the training thread, counted around it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any

from ddpprof.record import patches

_WITH_ORIGINALS = ("ddp_post_forward", "ddp_sync_buffers", "work_waits", "loader_fetches")
"""events that call what they wrap, whose time does not count"""


class NothingHeard:
    """A receiver that does nothing with the events of steps. What `CountedEvents` counts of it is its own time."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _pass_on if name in _WITH_ORIGINALS else _do_nothing

    def backward_begins(self, _tensors: Any) -> bool:
        return True  # the end is to be told, too


def _pass_on(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def _do_nothing(*_args: Any) -> None:
    return


class CountedEvents:
    """Passes the events of watched steps on, and counts the time of each in ns, some of its own included."""

    def __init__(self, hears: bool) -> None:
        """``hears=False``: ddpprof does not get the events of the steps that follow."""
        self._events = patches.step_events if hears else NothingHeard()
        self._step: dict[str, int] = defaultdict(int)
        self.steps: list[dict[str, int]] = []
        patches.step_events = self  # the wrappers around torch ask for it each time

    def end_step(self) -> None:
        """Keep what the events since the last call took."""
        self.steps.append(dict(self._step))
        self._step.clear()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        event = getattr(self._events, name)
        counted = self._around_original(name, event) if name in _WITH_ORIGINALS else self._counted(name, event)
        setattr(self, name, counted)
        return counted

    def _counted(self, name: str, event: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            first, begin = thread_time_ns(), thread_time_ns()
            result = event(*args)
            took_ns = thread_time_ns() - begin - (begin - first)
            self._step[name] += took_ns
            return result

        return counted

    def _around_original(self, name: str, event: Callable[..., Any]) -> Callable[..., Any]:
        def counted(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            within = 0

            def timed(*args: Any, **kwargs: Any) -> Any:
                nonlocal within
                began = thread_time_ns()
                try:
                    return original(*args, **kwargs)
                finally:
                    within += thread_time_ns() - began

            first, begin = thread_time_ns(), thread_time_ns()
            try:
                return event(timed, *args, **kwargs)
            finally:
                took_ns = thread_time_ns() - begin - within - 2 * (begin - first)
                self._step[name] += took_ns

        return counted


def by_event(steps: Sequence[dict[str, int]]) -> dict[str, list[int]]:
    """Return the times of each event, one for each step; events in the order in which they come."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: [step.get(name, 0) for step in steps] for name in names}
