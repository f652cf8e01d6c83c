"""Render a timeline as JSON for https://ui.perfetto.dev, in Chrome's trace event format.

Each rank is a process, and each track is a thread of that process. Slices in a track never overlap, because Perfetto
drops overlapping slices. Times are µs since the first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ddpprof.intervals import Spans
from ddpprof.model import UNKNOWN, Collectives, Int64Column, Phase, Work
from ddpprof.report import Report
from ddpprof.topics.steps.timeline import BucketSpan, RankTimeline, StepTimeline, Timeline
from ddpprof.words import utf8_text

_Event = dict[str, Any]
_GROUPS = ("steps", "step bar", "compute", "copies", "communication", "exposed", "trailing", "bucket")
"""order of the tracks, from top to bottom"""
_MOST_TRACKS = 10_000
"""maximum number of tracks per rank. Perfetto expects thread IDs to be unique across ranks, so track numbers are also
unique
"""


class Tracks:
    """The tracks of one rank. A track has several threads if its slices overlap."""

    def __init__(self, rank: int, host: str | None, origin_ns: int) -> None:
        self._rank = rank
        self._process = rank + 1  # 0 is the idle process
        self._host = host
        self._origin_ns = origin_ns
        self._free_ns: dict[str, list[int]] = {}
        """track → for each of its threads, the end of the thread's last slice"""
        self._threads: dict[tuple[str, int], int] = {}

    def slices(
        self,
        track: str,
        start_ns: Sequence[int],
        end_ns: Sequence[int],
        names: Sequence[str],
        arguments: Sequence[dict[str, Any]] | None = None,
    ) -> Iterator[_Event]:
        """Yield slices of a track.

        Slices must be given in order of start, and must not begin before earlier slices of the track.
        """
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
        """Yield a flow (arrows) between slices. Each point is a thread and a time within a slice."""
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
        """Yield the names of the process and its threads. Call this last."""
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


def render_perfetto(timeline: Timeline, report: Report, shortest_ns: int = 0) -> Iterator[bytes]:
    """Yield the file in pieces. Kernels, ops and copies shorter than `shortest_ns` are left out."""
    origin = min((_begin(rank.steps[0]) for rank in timeline.ranks if rank.steps), default=0)
    hosts = {rank.rank: rank.host for rank in report.ranks}
    about = {
        "ddpprof": report.ddpprof,
        "job": report.job.name,
        "start_ns": str(origin),  # on the first rank's clock; a string, because JavaScript would round a number
        "clock_error_ns": timeline.clock_error_ns,
    }
    yield b'{"displayTimeUnit":"ns","otherData":' + msgspec.json.encode(about) + b',"traceEvents":[\n'
    encode, separator = msgspec.json.Encoder().encode, b""
    for rank in timeline.ranks:
        shown = replace(rank, names=tuple(map(utf8_text, rank.names)))
        for event in _rank_events(shown, hosts.get(rank.rank), origin, shortest_ns):
            yield separator + encode(event)
            separator = b",\n"
    yield b"\n]}\n"


def _rank_events(rank: RankTimeline, host: str | None, origin_ns: int, shortest_ns: int) -> Iterator[_Event]:
    tracks = Tracks(rank.rank, host, origin_ns)
    for step in rank.steps:
        yield from tracks.slices("steps", [step.start_ns], [step.end_ns], [f"step {step.step}"])
        yield from _step_bar(tracks, step)
        yield from _kernels(tracks, "compute", rank, step.compute, shortest_ns)
        yield from _kernels(tracks, "copies", rank, step.copies, shortest_ns)
        sizes = _sizes(step)
        collectives = _collectives(tracks, rank, step, sizes)
        yield from collectives
        yield from _spans(tracks, "exposed communication", step.exposed, "exposed")
        if step.trailing is not None:
            yield from _spans(tracks, "trailing communication", step.trailing, "trailing")
        for bucket in step.buckets:
            yield from _bucket(tracks, step, bucket, collectives)
        yield from _counters(tracks, step, sizes)
    yield from tracks.names()


def _begin(step: StepTimeline) -> int:
    """Return the earliest start of any event of the step. A bucket may be ready before the first kernel."""
    rows = (table.start_ns.min() for table in (step.compute, step.copies, step.collectives) if len(table))
    return min([step.start_ns, *map(int, rows), *(b.ready_ns for b in step.buckets if b.ready_ns is not None)])


def _step_bar(tracks: Tracks, step: StepTimeline) -> Iterable[_Event]:
    parts = [
        (start, end, name.replace("_", " "))
        for name, spans in step.named_parts().items()
        for start, end in zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
    ]
    return tracks.slices("step bar", *zip(*sorted(parts), strict=True)) if parts else ()


def _spans(tracks: Tracks, track: str, spans: Spans, name: str) -> Iterable[_Event]:
    return tracks.slices(track, spans.start_ns.tolist(), spans.end_ns.tolist(), [name] * len(spans))


def _kernels(tracks: Tracks, what: str, rank: RankTimeline, table: Work, shortest_ns: int) -> Iterator[_Event]:
    lane = "thread" if rank.device == "cpu" else "stream"
    long_enough = table.end_ns - table.start_ns >= shortest_ns
    for device in np.unique(table.device).tolist():
        on = "" if device in (UNKNOWN, 0) else f", device {device}"
        for number in np.unique(table.lane[table.device == device]).tolist():
            rows = np.flatnonzero(long_enough & (table.device == device) & (table.lane == number))
            phases = [{"phase": Phase(phase).name.lower()} for phase in table.phase[rows].tolist()]
            names = [rank.names[name] for name in table.name[rows].tolist()]
            track = f"{what}: {lane} {number}{on}"
            yield from tracks.slices(track, table.start_ns[rows].tolist(), table.end_ns[rows].tolist(), names, phases)


def _collectives(tracks: Tracks, rank: RankTimeline, step: StepTimeline, sizes: Sequence[int | None]) -> list[_Event]:
    """Return one event for each collective, in table order."""
    comm, lane = step.collectives, "thread" if rank.device == "cpu" else "stream"
    columns = (comm.start_ns, comm.end_ns, comm.lane, comm.name)
    return [
        event
        for start, end, number, name, num_bytes in zip(*(c.tolist() for c in columns), sizes, strict=True)
        for event in tracks.slices(
            f"communication: {lane} {number}", [start], [end], [rank.names[name]], [_about(step, num_bytes)]
        )
    ]


def _about(step: StepTimeline, num_bytes: int | None) -> dict[str, Any]:
    return {"step": step.step} if num_bytes is None else {"step": step.step, "bytes": num_bytes}


def _sizes(step: StepTimeline) -> list[int | None]:
    """Return the size of each collective in bytes, from the trace or from its bucket."""
    sizes = [None if size == UNKNOWN else int(size) for size in step.collectives.num_bytes]
    for bucket in step.buckets:
        row = _row_of(step.collectives, bucket)
        if row is not None and sizes[row] is None:
            sizes[row] = bucket.num_bytes
    return sizes


def _row_of(comm: Collectives, bucket: BucketSpan) -> int | None:
    rows = np.flatnonzero((comm.start_ns == bucket.started_ns) & (comm.end_ns == bucket.finished_ns))
    return int(rows[0]) if len(rows) else None


def _bucket(tracks: Tracks, step: StepTimeline, bucket: BucketSpan, collectives: Sequence[_Event]) -> Iterator[_Event]:
    """Yield the stages of a bucket (held back, queued, transferred), and a flow from them to its collective."""
    name = f"bucket {bucket.index}" if bucket.module == 0 else f"bucket {bucket.module}/{bucket.index}"
    times = (bucket.ready_ns, bucket.launched_ns, bucket.started_ns, bucket.finished_ns)
    points: list[tuple[int, int]] = []
    for what, start, end in zip(("held back", "queued", "transferred"), times[:-1], times[1:], strict=True):
        if start is not None and end is not None and end > start:
            for event in tracks.slices(name, [start], [end], [f"{name} {what}"], [_about(step, bucket.num_bytes)]):
                points.append((event["tid"], start))
                yield event
    row = _row_of(step.collectives, bucket)
    if row is not None:
        points.append((collectives[row]["tid"], int(step.collectives.end_ns[row]) - 1))
    yield from tracks.flow(f"{step.step}.{bucket.module}.{bucket.pass_index}.{bucket.index}", name, points)


def _counters(tracks: Tracks, step: StepTimeline, sizes: Sequence[int | None]) -> Iterator[_Event]:
    hidden = step.overlap
    times = [step.start_ns, *np.column_stack((hidden.start_ns, hidden.end_ns)).ravel().tolist()]
    yield from tracks.counter("hidden communication", times, [0, *([1, 0] * len(hidden))])
    rows = [row for row, size in enumerate(sizes) if size is not None]
    if rows:
        known = np.array([sizes[row] for row in rows], np.int64)
        begun, ended = step.collectives.start_ns[rows], step.collectives.end_ns[rows]
        yield from tracks.counter("bytes in flight", *_in_flight(begun, ended, known))


def _in_flight(start_ns: Int64Column, end_ns: Int64Column, sizes: Int64Column) -> tuple[Sequence[int], Sequence[int]]:
    times, at = np.unique(np.concatenate((start_ns, end_ns)), return_inverse=True)
    changes = np.zeros(len(times), np.int64)
    np.add.at(changes, at, np.concatenate((sizes, -sizes)))
    return times.tolist(), np.cumsum(changes).tolist()
