"""Data of a page's timeline: lanes of every step and rank, as columns for `timeline.js`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import Spans
from ddpprof.layout import clean, megabytes
from ddpprof.model import Collectives, Phase, Work
from ddpprof.model.tables import rows_of
from ddpprof.render.html.charts import bucket_label
from ddpprof.topics.steps.timeline import BucketSpan, RankTimeline, StepTimeline, Timeline

MAX_SPANS = 60_000
"""maximum number of spans in the step that is shown first, and in all other steps together"""

_MOST_KEPT = 8 * MAX_SPANS
"""if there are more spans than this in memory, spans that are too narrow to be visible are merged"""

KINDS = (
    "forward", "backward", "exposed", "optimizer", "data", "other", "copy", "idle",
    "held", "queued", "comm", "trailing",
)  # fmt: skip
"""kinds of spans; the first eight are the parts of the step, in the order of `Breakdown`"""

_KIND_OF_PART = {"exposed_comm": "exposed"}
_OF_PHASE = {
    Phase.OTHER: "other",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.FINALIZE: "backward",
    Phase.OPTIMIZER: "optimizer",
}
_STAGES = ("held", "queued", "comm")
_MAX_ROWS = 4


@dataclass(slots=True)
class _Names:
    """A table of distinct names."""

    index: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> int:
        return self.index.setdefault(clean(name), len(self.index))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One step of one rank."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    lanes: Mapping[str, SpanColumns]

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))


def timeline_data(timeline: Timeline, first_step: int, hosts: Mapping[int, str | None]) -> dict[str, Any] | None:
    """Return the data, with times in ns since the first rank began the step; ``None`` if there are no steps."""
    names = _Names()
    now: list[_Drawn] = []
    rest: list[_Drawn] = []
    num_in_rest = 0
    for rank in timeline.ranks:
        for step in rank.steps:
            drawn = _Drawn(rank.rank, step.step, step.start_ns, step.end_ns, _lanes(rank, step, names))
            if step.step == first_step:
                now.append(drawn)
                continue
            rest.append(drawn)
            num_in_rest += len(drawn)
            if num_in_rest > _MOST_KEPT:
                rest = _coarsened(rest)
                num_in_rest = sum(map(len, rest))
    if not now and not rest:
        return None
    began: dict[int, int] = {}
    for one in (*now, *rest):
        began[one.step] = min(one.start_ns, began.get(one.step, one.start_ns))
    steps: dict[int, dict[str, Any]] = {}
    for one in (*_coarsened(now), *_coarsened(rest)):
        begun = began[one.step]
        steps.setdefault(one.step, {"ranks": {}})["ranks"][one.rank] = {
            "start": one.start_ns - begun,
            "end": one.end_ns - begun,
            "lanes": {name: _columns(spans, begun) for name, spans in one.lanes.items()},
        }
    return {
        "kinds": KINDS,
        "names": list(names.index),
        "error": timeline.clock_error_ns,
        "ranks": [_about(rank, hosts.get(rank.rank)) for rank in timeline.ranks],
        "steps": dict(sorted(steps.items())),
    }


def _about(rank: RankTimeline, host: str | None) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": None if host is None else clean(host, most=60),
        "device": rank.device,
        "common": rank.on_common_clock,
    }


def _coarsened(drawn: Sequence[_Drawn]) -> list[_Drawn]:
    """Return the steps with spans merged so that there are at most `MAX_SPANS` in total."""
    lanes = [one for each in drawn for one in each.lanes.values()]
    grain_ns = grain_for(lanes, MAX_SPANS, max((one.end_ns - one.start_ns for one in drawn), default=1))
    return [replace(one, lanes={name: coarsen(fine, grain_ns) for name, fine in one.lanes.items()}) for one in drawn]


def _lanes(rank: RankTimeline, step: StepTimeline, names: _Names) -> dict[str, SpanColumns]:
    found = {
        "step": _parts(step),
        "compute": _work(rank, step, names),
        "buckets": _buckets(step.buckets, names),
        "collectives": _collectives(rank, step.collectives, names),
        "exposed": _spans([(step.exposed, "exposed")]),
        "trailing": _spans([(step.trailing, "trailing")] if step.trailing is not None else []),
    }
    return {name: spans for name, spans in found.items() if len(spans)}


def _parts(step: StepTimeline) -> SpanColumns:
    """Return the parts of the step except idle time."""
    parts = step.named_parts().items()
    return _spans([(spans, _KIND_OF_PART.get(name, name)) for name, spans in parts if name != "idle"])


def _spans(found: Iterable[tuple[Spans, str]]) -> SpanColumns:
    pairs = list(found)
    empty = np.empty(0, np.int64)
    start = np.concatenate([empty, *(spans.start_ns for spans, _ in pairs)])
    end = np.concatenate([empty, *(spans.end_ns for spans, _ in pairs)])
    kind = np.repeat([KINDS.index(kind) for _, kind in pairs], [len(spans) for spans, _ in pairs]).astype(np.int64)
    return lane(start, end, kind, np.full(len(start), -1))


def _work(rank: RankTimeline, step: StepTimeline, names: _Names) -> SpanColumns:
    kinds = np.array([KINDS.index(_OF_PHASE[phase]) for phase in Phase])
    kind = [kinds[step.compute.phase], np.full(len(step.copies), KINDS.index("copy"))]
    name = [_named(rank, table, names) for table in (step.compute, step.copies)]
    start, end = (
        np.concatenate([getattr(table, times) for table in (step.compute, step.copies)])
        for times in ("start_ns", "end_ns")
    )
    return lane(start, end, np.concatenate(kind), np.concatenate(name), most_rows=3)


def _named(rank: RankTimeline, table: Work, names: _Names) -> Any:
    own, place = np.unique(table.name, return_inverse=True)
    return np.array([names.of(rank.names[index]) for index in own.tolist()], np.int64)[place]


def _collectives(rank: RankTimeline, table: Collectives, names: _Names) -> SpanColumns:
    rows = zip(table.name.tolist(), table.num_bytes.tolist(), strict=True)
    name = [names.of(f"{_sized(size)}{clean(rank.names[index], most=160)}") for index, size in rows]
    kind = np.full(len(table), KINDS.index("comm"))
    return lane(table.start_ns, table.end_ns, kind, np.array(name, np.int64), _MAX_ROWS)


def _sized(num_bytes: int) -> str:
    return f"{megabytes(num_bytes)} MB, " if num_bytes >= 0 else ""


def _buckets(buckets: Sequence[BucketSpan], names: _Names) -> SpanColumns:
    """Return the stages of each bucket. Buckets that overlap in time are in different rows."""
    times = [[b.ready_ns, b.launched_ns, b.started_ns, b.finished_ns] for b in buckets]
    known = [[time for time in row if time is not None] for row in times]
    whole = [(row[0], row[-1], number) for number, row in enumerate(known) if len(row) > 1]
    if not whole:
        return _spans([])
    begin, finish, number = (np.array(column, np.int64) for column in zip(*whole, strict=True))
    labels = [bucket_label(bucket.module, bucket.index, bucket.num_bytes) for bucket in buckets]
    placed = lane(begin, finish, number, number, _MAX_ROWS)
    pieces = [
        (start, end, KINDS.index(kind), names.of(labels[index]), row)
        for index, row in zip(placed.kind.tolist(), placed.row.tolist(), strict=True)
        for kind, start, end in zip(_STAGES, times[index][:-1], times[index][1:], strict=True)
        if start is not None and end is not None
    ]
    pieces.sort(key=lambda piece: (piece[4], piece[0]))
    if not pieces:
        return _spans([])
    start, end, kind, name, row = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    return SpanColumns(start, end, end - start, np.ones(len(start), np.int64), kind, name, row)


def _columns(spans: SpanColumns, begun_ns: int) -> dict[str, list[int]]:
    columns = {
        "start": spans.start_ns - begun_ns,
        "length": spans.end_ns - spans.start_ns,
        "busy": spans.busy_ns,
        "count": spans.count,
        "kind": spans.kind,
        "name": spans.name,
        "row": spans.row,
    }
    return {name: column.tolist() for name, column in columns.items()}


def timeline_json(timeline: Timeline, first_step: int, hosts: Mapping[int, str | None]) -> bytes | None:
    data = timeline_data(timeline, first_step, hosts)
    return None if data is None else json.dumps(data, separators=(",", ":")).encode()


_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SpanColumns:
    """Spans, sorted by row and start. Times are in ns. `kind` and `name` are indices defined by the caller."""

    start_ns: _Column
    end_ns: _Column
    busy_ns: _Column
    """total length of the original spans that were merged into this span"""
    count: _Column
    kind: _Column
    name: _Column
    row: _Column

    def __len__(self) -> int:
        return len(self.start_ns)


def lane(start_ns: _Column, end_ns: _Column, kind: _Column, name: _Column, most_rows: int = 1) -> SpanColumns:
    """Return a lane with overlapping spans in different rows, in at most `most_rows` rows."""
    order = np.lexsort((end_ns, start_ns))
    start, end = start_ns[order].astype(np.int64), end_ns[order].astype(np.int64)
    row = _rows(start, end, most_rows)
    by_row = np.argsort(row, kind="stable")
    order, start, end, row = order[by_row], start[by_row], end[by_row], row[by_row]
    ones = np.ones(len(start), np.int64)
    return SpanColumns(start, end, end - start, ones, kind[order].astype(np.int64), name[order].astype(np.int64), row)


def _rows(start: _Column, end: _Column, most: int) -> _Column:
    """Return, for each span, the first row that is free when the span starts or, if there is none, the last row."""
    if most == 1:
        return np.zeros(len(start), np.int64)
    free = [np.iinfo(np.int64).min] * most
    rows = np.empty(len(start), np.int64)
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        row = next((number for number, at in enumerate(free) if at <= begin), most - 1)
        free[row] = max(free[row], finish)
        rows[index] = row
    return rows


def coarsen(fine: SpanColumns, grain_ns: int) -> SpanColumns:
    """Merge spans shorter than `grain_ns`, separately for each kind. Spans of different kinds may then overlap."""
    if not len(fine) or grain_ns <= 0:
        return fine
    by_kind = rows_of(fine, np.lexsort((fine.start_ns, fine.kind, fine.row)))
    narrow = by_kind.end_ns - by_kind.start_ns < grain_ns
    place = np.stack((by_kind.start_ns // grain_ns, by_kind.kind, by_kind.row))
    opens = np.concatenate(([True], (np.diff(place, axis=1) != 0).any(axis=0) | ~narrow[1:] | ~narrow[:-1]))
    first, group = np.flatnonzero(opens), np.cumsum(opens) - 1
    longest = np.lexsort((by_kind.end_ns - by_kind.start_ns, group))[np.append(first[1:], len(fine)) - 1]
    merged = SpanColumns(
        by_kind.start_ns[first],
        np.maximum.reduceat(by_kind.end_ns, first),
        np.add.reduceat(by_kind.busy_ns, first),
        np.add.reduceat(by_kind.count, first),
        by_kind.kind[first],
        by_kind.name[longest],
        by_kind.row[first],
    )
    return rows_of(merged, np.lexsort((merged.start_ns, merged.row)))


def grain_for(lanes: Sequence[SpanColumns], most: int, length_ns: int) -> int:
    """Return the smallest `grain_ns` of `coarsen` with which all lanes have at most `most` spans in total."""
    grain_ns, finest = 0, max(1, length_ns >> 14)
    while sum(len(coarsen(one, grain_ns)) for one in lanes) > most and grain_ns < length_ns:
        grain_ns = max(finest, 2 * grain_ns)
    return grain_ns
