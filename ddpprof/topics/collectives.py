"""Summarize collectives by kind, process group and size class: number, bytes, transfer time and bandwidth.

    transfer = shortest duration over the ranks that were read (a rank that was not read could be faster)
    algbw    = bytes / transfer; time during which n collectives run counts as 1/n for each
    busbw    = algbw · factor of n ranks: 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter,
               all-to-all, gather and scatter, 1 for broadcast and reduce (nccl-tests, PERFORMANCE.md)

A size class extends from one power of two to the next. Medians are over the collectives of a class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.numbers import Number
from ddpprof.layout import ABSENT, Section, clean, cut_off, gigabytes_per_s, megabytes, ms, notes, table_of
from ddpprof.model import UNKNOWN, CollectiveKind, Collectives, Int64Column, ProcessGroup
from ddpprof.model.json_files import CollectiveTimes, NetBench
from ddpprof.model.tables import rows_of
from ddpprof.statistics import first_quartile
from ddpprof.topics.collective_matching import MatchedCollectives, RankCollectives, common_groups
from ddpprof.topics.ranks.own_time import Arrivals

_ALL_BUT_OWN = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
)


@dataclass(frozen=True, slots=True)
class CollectiveSummary:
    """Collectives of one kind, process group and size class, over all steps."""

    kind: Annotated[str, Number("kind of collective, such as `all_reduce`")]
    group: Annotated[str | None, Number("name of the process group")]
    """the name is ``None`` if the trace does not name the process group"""
    num_ranks: Annotated[int | None, Number("number of ranks in the group")]
    """number of ranks in the group or, if the trace does not name the group, in the job"""
    at_least_bytes: Annotated[int | None, Number("smallest size in the class")]
    below_bytes: Annotated[int | None, Number("upper limit of the class (exclusive)")]
    num_calls: Annotated[int, Number("number of calls on the rank with the most calls")]
    num_bytes: Annotated[int | None, Number("total bytes of these calls", column="total_bytes")]
    num_ranks_read: Annotated[int, Number("number of ranks that were compared; if 1, transfers include waiting")]
    transfer_ns: Annotated[int, Number("shortest duration over the ranks, median")]
    """median transfer time; only an upper bound if some ranks were not read, because it may include waiting"""
    shared_transfer_ns: Annotated[int, Number("transfer time divided by the number of concurrent collectives, median")]
    waiting_ns: Annotated[int | None, Number("waiting time of the rank that waits longest, median")]
    algbw_bytes_per_s: Annotated[float | None, Number("size / transfer time, as in nccl-tests")]
    busbw_bytes_per_s: Annotated[float | None, Number("bus bandwidth as defined by nccl-tests")]


def bus_factor(kind: CollectiveKind, num_ranks: int | None) -> float | None:
    """Return busbw / algbw as defined by nccl-tests; ``None`` if not defined."""
    if num_ranks is None or num_ranks < 2:
        return None
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (num_ranks - 1) / num_ranks
    if kind in _ALL_BUT_OWN:
        return (num_ranks - 1) / num_ranks
    return 1.0 if kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE) else None


def summarize_collectives(
    ranks: Sequence[RankCollectives],
    matched: MatchedCollectives,
    arrivals: Arrivals,
    world_size: int | None,
    sizes: Mapping[int, Mapping[int, int]] | None = None,
) -> tuple[CollectiveSummary, ...]:
    """Summarize collectives, ordered by kind, process group and size.

    `sizes`: bytes by rank and row, for rows without a size in the trace.
    """
    if not ranks:
        return ()
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    groups, of_rows = common_groups(ranks)
    sized = sizes_of_rows(ranks, matched, sizes or {})
    rows = [_rows(*of_rank) for of_rank in zip(ranks, of_rows, sized, strict=True)]
    transfer, waiting_ns = _fastest(matched, arrivals, rows), arrivals.waiting_ns
    classes = np.unique(np.concatenate([of_rank.key for of_rank in rows]), axis=0)
    return tuple(_summarize(key, groups[int(key[1])], world_size, transfer, waiting_ns, rows) for key in classes)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Collectives of one rank, or matched collectives."""

    key: Int64Column
    """[n, 3]: kind, process group and size class of each collective"""
    num_bytes: Int64Column
    duration_ns: Int64Column
    shared_ns: Int64Column


def _rows(one: RankCollectives, groups: NDArray[np.int32], num_bytes: Int64Column) -> _Rows:
    comm = one.collectives
    key = np.stack((comm.kind.astype(np.int64), groups.astype(np.int64), _size_class(num_bytes)), axis=1)
    return _Rows(key, num_bytes, comm.end_ns - comm.start_ns, shared_durations_ns(comm))


def _size_class(num_bytes: Int64Column) -> Int64Column:
    """Return -1 for an unknown size, 0 for size 0, and c for sizes in [2^(c-1), 2^c)."""
    exponent = np.frexp(np.maximum(num_bytes, 0).astype(np.float64))[1]
    return np.where(num_bytes == UNKNOWN, -1, exponent).astype(np.int64)


def sizes_of_rows(
    ranks: Sequence[RankCollectives], matched: MatchedCollectives, given: Mapping[int, Mapping[int, int]]
) -> list[Int64Column]:
    """Return the sizes of each rank's rows, in rank order: from the trace, from `given`, or from another rank.

    If the sizes differ between ranks, as in an all-to-all, the largest size is used for all of them.
    """
    sized = []
    for rank in ranks:
        size = rank.collectives.num_bytes.copy()
        for row, num_bytes in given.get(rank.rank, {}).items():
            size[row] = num_bytes if size[row] == UNKNOWN else size[row]
        sized.append(size)
    by_number = {rank.rank: size for rank, size in zip(ranks, sized, strict=True)}
    columns = [(matched.rows[:, column], by_number[number]) for column, number in enumerate(matched.ranks)]
    largest = np.full(len(matched), UNKNOWN, np.int64)
    for rows, size in columns:
        largest = np.maximum(largest, np.where(rows != UNKNOWN, size[rows], UNKNOWN) if len(size) else UNKNOWN)
    for rows, size in columns:
        known = rows != UNKNOWN
        size[rows[known]] = largest[known]
    return sized


def _fastest(matched: MatchedCollectives, arrivals: Arrivals, rows: Sequence[_Rows]) -> _Rows:
    """Return the row of each matched collective on its fastest rank. `rows`: rows of each rank, in rank order."""
    fastest = (arrivals.waiting_ns == 0).argmax(axis=1) if len(matched) else np.empty(0, np.int64)
    lines = [np.flatnonzero(fastest == column) for column in range(len(rows))]
    picked = _joined([rows_of(rows[column], matched.rows[line, column]) for column, line in enumerate(lines)])
    return rows_of(picked, np.argsort(np.concatenate(lines)))


def _summarize(
    key: Int64Column,
    group: ProcessGroup,
    world_size: int | None,
    transfer: _Rows,
    waiting_ns: Int64Column,
    rows: Sequence[_Rows],
) -> CollectiveSummary:
    """Summarize one size class. `transfer` and `waiting_ns` contain the matched collectives of all classes."""
    kind, _, size_class = key.tolist()
    of_rank = [rows_of(one, (one.key == key).all(axis=1)) for one in rows]
    most = max(of_rank, key=lambda one: len(one.key))
    mine = (transfer.key == key).all(axis=1)
    waiting = waiting_ns[mine]
    fastest = rows_of(transfer, mine) if mine.any() else _joined(of_rank)
    num_ranks = group.size if group.size is not None else world_size
    algbw = _bandwidth(fastest) if mine.any() and size_class >= 0 else None
    factor = bus_factor(CollectiveKind(kind), num_ranks)
    return CollectiveSummary(
        kind=CollectiveKind(kind).name.lower(),
        group=group.name,
        num_ranks=num_ranks,
        at_least_bytes=None if size_class < 0 else 1 << size_class >> 1,
        below_bytes=None if size_class < 0 else 1 << size_class,
        num_calls=len(most.key),
        num_bytes=None if size_class < 0 else int(most.num_bytes.sum()),
        num_ranks_read=int((waiting != UNKNOWN).sum(axis=1).max()) if mine.any() else 1,
        transfer_ns=round(float(np.median(fastest.duration_ns))),
        shared_transfer_ns=round(float(np.median(fastest.shared_ns))),
        waiting_ns=round(float(np.median(waiting.max(axis=1)))) if mine.any() else None,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * factor if algbw is not None and factor is not None else None,
    )


def _joined(rows: Sequence[_Rows]) -> _Rows:
    return _Rows(*(np.concatenate([getattr(one, column.name) for one in rows]) for column in fields(_Rows)))


def _bandwidth(rows: _Rows) -> float | None:
    timed = rows.shared_ns > 0
    if not timed.any():
        return None
    return float(np.median(rows.num_bytes[timed] / rows.shared_ns[timed])) * 1e9


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Speed of the link for one message size."""

    num_bytes: int
    num_iterations: int
    median_ns: int
    least_ns: int
    most_ns: int
    cpu_ns: int
    """CPU time per collective on one rank, as the median over ranks"""
    bus_factor: float | None
    two_at_once: float | None
    """time of two concurrent collectives divided by the time of one collective; ``None`` if not measured"""

    @property
    def algbw_bytes_per_s(self) -> float:
        return self.num_bytes * 1e9 / self.median_ns

    @property
    def busbw_bytes_per_s(self) -> float | None:
        return None if self.bus_factor is None else self.algbw_bytes_per_s * self.bus_factor


def measure_link(bench: NetBench) -> tuple[LinkSpeed, ...]:
    factor = bus_factor(CollectiveKind[bench.collective.upper()], bench.world_size)
    ratios = {
        times.num_bytes: first_quartile(times.both_ns) / first_quartile(times.alone_ns) for times in bench.concurrent
    }
    return tuple(_speed(times, factor, ratios.get(times.num_bytes)) for times in bench.sizes)


def is_disturbed(speeds: Sequence[LinkSpeed]) -> bool:
    """Return whether, for most sizes, the median time is more than twice the shortest time."""
    return sum(speed.median_ns > 2 * speed.least_ns for speed in speeds) > len(speeds) / 2


def _speed(times: CollectiveTimes, factor: float | None, two_at_once: float | None) -> LinkSpeed:
    return LinkSpeed(
        num_bytes=times.num_bytes,
        num_iterations=len(times.longest_ns),
        median_ns=round(median(times.longest_ns)),
        least_ns=min(times.longest_ns),
        most_ns=max(times.longest_ns),
        cpu_ns=round(median(times.cpu_ns)),
        bus_factor=factor,
        two_at_once=two_at_once,
    )


def shared_durations_ns(comm: Collectives) -> Int64Column:
    """Return the duration of every row in ns.

    While n collectives run at the same time, 1/n of the time is assigned to each of them.
    """
    if not len(comm):
        return np.empty(0, np.int64)
    times = np.concatenate((comm.start_ns, comm.end_ns))
    change = np.repeat([1, -1], len(comm))
    order = np.argsort(times, kind="stable")
    times = times[order]
    running = np.cumsum(change[order])[:-1]
    share = np.diff(times) / np.maximum(running, 1)
    passed = np.concatenate(([0.0], np.cumsum(np.where(running > 0, share, 0.0))))
    # For equal times, any of their positions gives the same result.
    start, end = (passed[np.searchsorted(times, edge)] for edge in (comm.start_ns, comm.end_ns))
    shared: Int64Column = np.rint(end - start).astype(np.int64)
    return shared


_MAX_ROWS = 24
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def collective_table(rows: Sequence[CollectiveSummary]) -> Iterable[Section]:
    if not rows:
        return
    cells = (
        _CELLS if len({row.group for row in rows}) > 1 else {name: _CELLS[name] for name in _CELLS if name != "group"}
    )
    alone = max(row.num_ranks_read for row in rows) == 1
    said = notes(
        "calls could not be matched between ranks, so transfer includes waiting, and no bandwidth is shown"
        if alone
        else "transfer: shortest duration over the ranks; waiting: longest minus shortest duration (medians)",
        "calls and MB: for one rank, over all profiled steps",
        "" if alone else "busbw: link bandwidth as defined by nccl-tests; 1 GB is 10⁹ bytes",
        cut_off(len(rows), _MAX_ROWS, "rows"),
    )
    yield table_of("Collectives by size", rows[:_MAX_ROWS], cells, ("collective", "group"), said)


def _size_range(row: CollectiveSummary) -> str:
    if row.at_least_bytes is None or row.below_bytes is None:
        return ABSENT
    return f"{power_of_two(row.at_least_bytes)}–{power_of_two(row.below_bytes)}"


_CELLS: Mapping[str, Callable[[CollectiveSummary], str]] = {
    "collective": lambda row: clean(row.kind.replace("_", "-"), most=30),
    "group": lambda row: ABSENT if row.group is None else clean(row.group, most=30),
    "size": _size_range,
    "calls": lambda row: str(row.num_calls),
    "MB": lambda row: megabytes(row.num_bytes),
    "transfer ms": lambda row: ms(row.transfer_ns),
    "waiting ms": lambda row: ms(row.waiting_ns),
    "algbw GB/s": lambda row: gigabytes_per_s(row.algbw_bytes_per_s),
    "busbw GB/s": lambda row: gigabytes_per_s(row.busbw_bytes_per_s),
}


def power_of_two(num_bytes: int) -> str:
    unit = next(((size, name) for size, name in _SIZES if num_bytes >= size), None)
    return f"{num_bytes} B" if unit is None else f"{num_bytes // unit[0]} {unit[1]}"
