"""The tracks of one rank in Chrome's trace event format: slices, flows, counters, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_Event = dict[str, Any]
_GROUPS = ("steps", "step bar", "compute", "copies", "communication", "exposed", "trailing", "bucket")
"""order of the tracks, from top to bottom"""
_MOST_TRACKS = 10_000
"""most tracks per rank; numbers differ between ranks, since Perfetto takes them for threads of one machine"""


class Tracks:
    """The tracks of one rank. A track is a thread of the rank's process, with further threads where slices overlap."""

    def __init__(self, rank: int, host: str | None, origin_ns: int) -> None:
        self._rank = rank
        self._process = rank + 1  # 0 is the idle process
        self._host = host
        self._origin_ns = origin_ns
        self._free_ns: dict[str, list[int]] = {}
        """track → time from which each of its threads is free"""
        self._threads: dict[tuple[str, int], int] = {}

    def slices(
        self,
        track: str,
        start_ns: Sequence[int],
        end_ns: Sequence[int],
        names: Sequence[str],
        arguments: Sequence[dict[str, Any]] | None = None,
    ) -> Iterator[_Event]:
        """Yield slices, sorted by start and not before those already in the track."""
        free = self._free_ns.setdefault(track, [])
        for index, (start, end, name) in enumerate(zip(start_ns, end_ns, names, strict=True)):
            thread = next((number for number, since in enumerate(free) if since <= start), len(free))
            free[thread : thread + 1] = [end]
            event = self._event("X", start, name, self._thread(track, thread))
            event["dur"] = (end - start) / 1e3
            if arguments is not None:
                event["args"] = arguments[index]
            yield event

    def flow(self, identity: str, name: str, points: Sequence[tuple[int, int]]) -> Iterator[_Event]:
        """Yield arrows between slices; each point is a thread and an instant within its slice."""
        if len(points) < 2:
            return
        for index, (thread, time_ns) in enumerate(points):
            kind = "s" if index == 0 else "f" if index == len(points) - 1 else "t"
            event = self._event(kind, time_ns, name, thread)
            yield {**event, "cat": "bucket", "id": f"{self._rank}.{identity}", "bp": "e"}

    def counter(self, name: str, times_ns: Sequence[int], values: Sequence[int]) -> Iterator[_Event]:
        for time_ns, value in zip(times_ns, values, strict=True):
            yield {**self._event("C", time_ns, name, None), "args": {"value": value}}

    def names(self) -> Iterator[_Event]:
        """Yield the names of the process and its threads; call this last."""
        host = f" ({self._host})" if self._host else ""
        yield self._about("process_name", None, {"name": f"rank {self._rank}{host}"})
        yield self._about("process_sort_index", None, {"sort_index": self._rank})
        for (track, number), thread in self._threads.items():
            place = next(index for index, group in enumerate(_GROUPS) if track.startswith(group))
            yield self._about("thread_name", thread, {"name": track if number == 0 else f"{track} ({number + 1})"})
            yield self._about("thread_sort_index", thread, {"sort_index": place * _MOST_TRACKS + thread})

    def _thread(self, track: str, number: int) -> int:
        new = self._process * _MOST_TRACKS + len(self._threads)
        return self._threads.setdefault((track, number), new)

    def _event(self, kind: str, time_ns: int, name: str, thread: int | None) -> _Event:
        event = {"ph": kind, "ts": (time_ns - self._origin_ns) / 1e3, "pid": self._process, "name": name}
        return event if thread is None else {**event, "tid": thread}

    def _about(self, what: str, thread: int | None, arguments: dict[str, Any]) -> _Event:
        event = {"ph": "M", "pid": self._process, "name": what, "args": arguments}
        return event if thread is None else {**event, "tid": thread}
