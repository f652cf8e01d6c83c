"""Estimate offset and drift of each rank's clock relative to the lowest rank's clock (the reference).

    common time = time on the rank's clock - offset - drift · (time - at)

The time on a rank's clock is the time in its trace plus the trace's epoch, if known.

Offset: an all-reduce ends on all ranks at the same time except for noise, so the offset is the median over collectives
of (end on the rank - end on the reference). Drift: the Theil-Sen slope of that difference (Sen 1968), or 0 unless its
confidence interval excludes 0 and the drift exceeds the noise.

Bound: a collective in which every rank depends on every other rank cannot end on any rank before it has started on all
ranks. Each such collective limits the offset to between (start on the rank - end on the reference) and (end on the
rank - start on the reference). The estimate is clamped to the intersection of these intervals, and the bound is its
distance to the farther end. With gloo, a thread that waits for a core records the end late, which widens the bound.

Ranks on the reference's host use the same clock, unless the ends of their collectives contradict this. The remaining
difference results from each profiler's conversion of CPU timestamps into time since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import UNKNOWN, CollectiveKind, Int64Column
from ddpprof.topics.collective_matching import MatchedCollectives, RankCollectives

ALL_DEPEND_ON_ALL = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BARRIER,
)

_MOST_POINTS = 64
"""maximum number of points to which the drift is fitted; if there are more collectives, groups of them are replaced by
their median
"""
_FEWEST_POINTS = 8
_LARGEST_DRIFT = 500e-6
"""largest drift rate that Linux allows for a clock: 500 ppm"""
_ON_ONE_HOST_NS = 100_000
"""largest possible error between the clocks of two ranks on one host, in ns; according to the recorder's timestamps,
their profilers agree within 30 µs
"""
_SIGNIFICANT = 2.576
"""99 % of a normal distribution lies within this many standard deviations of the mean"""


@dataclass(frozen=True, slots=True)
class RankClock:
    rank: int
    host: str | None
    offset_ns: int
    """how far the rank's clock is ahead of the reference, at ``CommonClock.at_ns``"""
    drift_ppm: float
    bound_ns: int | None
    """maximum error of the offset; ``None`` if collectives contradict each other, because one was misidentified or the
    clock jumped
    """
    num_collectives: int
    """number of collectives that both this rank and the reference took part in"""
    noise_ns: int | None = None
    """three standard errors of the offset, from the spread of the collectives' ends; usually much smaller than
    `bound_ns`
    """


@dataclass(frozen=True, slots=True)
class HostClock:
    host: str
    num_ranks: int
    offset_ns: int | None
    """offset of the host's clock; ``None`` if the clocks of the host's ranks differ by more than their noise"""
    drift_ppm: float | None
    bound_ns: int | None
    """largest `bound_ns` of the host's ranks"""
    noise_ns: int | None = None
    """largest `noise_ns` of the host's ranks"""


@dataclass(frozen=True, slots=True)
class CommonClock:
    """Clocks of all ranks relative to the reference. Times are in ns, since 1970 if the traces record an epoch."""

    at_ns: int
    """time on the reference's clock to which the offsets refer"""
    ranks: tuple[RankClock, ...]
    """clocks in order of rank, except that the reference comes first; ranks that share no collective with the reference
    are left out
    """
    hosts: tuple[HostClock, ...]

    def find(self, rank: int) -> RankClock | None:
        return next((clock for clock in self.ranks if clock.rank == rank), None)


def common_ns(at_ns: int, clock: RankClock, times_ns: Int64Column) -> Int64Column:
    """Convert times from the rank's clock to the reference. `at_ns`: see `CommonClock`."""
    since = (times_ns - at_ns - clock.offset_ns).astype(np.float64)
    return times_ns - clock.offset_ns - np.rint(since * clock.drift_ppm * 1e-6).astype(np.int64)


def find_common_clock(ranks: Sequence[RankCollectives], matched: MatchedCollectives) -> CommonClock | None:
    """Return the common clock; ``None`` if no collective of the kinds `ALL_DEPEND_ON_ALL` was matched."""
    known = (matched.rows != UNKNOWN) & np.isin(matched.kind, ALL_DEPEND_ON_ALL)[:, None]
    if not known.any():
        return None
    start = matched.gather(ranks, lambda one: one.collectives.start_ns + (one.epoch_ns or 0))
    end = matched.gather(ranks, lambda one: one.collectives.end_ns + (one.epoch_ns or 0))
    first = int(np.argmax(known.any(axis=0)))
    here = known[:, first]
    at = int(np.sort(end[here, first])[int(here.sum()) // 2])
    pairs = {}
    for column, number in enumerate(matched.ranks):
        both = here & known[:, column]
        if column != first and both.any():
            pairs[number] = _Pair(
                since=(end[both, first] - at).astype(np.float64),
                difference=end[both, column] - end[both, first],
                lowest=start[both, column] - end[both, first],
                highest=end[both, column] - start[both, first],
            )
    host_of = {one.rank: one.host for one in ranks}
    reference = RankClock(matched.ranks[first], host_of[matched.ranks[first]], 0, 0.0, 0, int(here.sum()))
    lines = _lines(pairs, host_of, reference)

    def clock(number: int, pair: _Pair) -> RankClock:
        same = reference.host is not None and host_of[number] == reference.host and lines[number] == _ONE_CLOCK
        return pair.clock(number, host_of[number], lines[number], reads_the_reference=same)

    clocks = (reference, *(clock(number, pair) for number, pair in pairs.items()))
    return CommonClock(at, clocks, _host_clocks(clocks))


@dataclass(frozen=True, slots=True)
class _Line:
    offset_ns: int
    """offset of the clock at `CommonClock.at_ns`"""
    drift: float

    def at(self, since_ns: float) -> float:
        return self.offset_ns + self.drift * since_ns


_ONE_CLOCK = _Line(0, 0.0)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The collectives that a rank shares with the reference."""

    since: NDArray[np.float64]
    """for each collective: time from `CommonClock.at_ns` to its end on the reference, in ns"""
    difference: Int64Column
    """for each collective: its end on the rank minus its end on the reference, in ns"""
    lowest: Int64Column
    """for each collective: smallest offset that is possible"""
    highest: Int64Column

    def line(self) -> _Line:
        drift = _drift(self.since, self.difference)
        return _Line(_median(self.difference - self._moved(drift)), drift)

    def agrees(self, line: _Line, other: _Line) -> bool:
        """Return whether this rank's `line` is consistent with `other` over the observed time."""
        noise = self._noise_ns(line.drift)
        return all(abs(line.at(edge) - other.at(edge)) <= noise for edge in (self.since.min(), self.since.max()))

    def allows(self, line: _Line) -> bool:
        """Return whether, according to `line`, each collective started on both ranks before it ended on either."""
        moved = np.rint(line.offset_ns + self.since * line.drift).astype(np.int64)
        return bool((self.lowest <= moved).all() and (moved <= self.highest).all())

    def clock(self, rank: int, host: str | None, line: _Line, reads_the_reference: bool) -> RankClock:
        moved = self._moved(line.drift)
        lowest, highest = int((self.lowest - moved).max()), int((self.highest - moved).min())
        if lowest > highest:
            return RankClock(rank, host, line.offset_ns, line.drift * 1e6, None, len(moved))
        noise = ceil(self._noise_ns(line.drift))
        offset = min(max(line.offset_ns, lowest), highest)
        bound = max(offset - lowest, highest - offset)
        if reads_the_reference:
            bound = min(bound, _ON_ONE_HOST_NS)
        return RankClock(rank, host, offset, line.drift * 1e6, bound, len(moved), min(noise, bound))

    def _moved(self, drift: float) -> Int64Column:
        return np.rint(self.since * drift).astype(np.int64)

    def _noise_ns(self, drift: float) -> float:
        """Return the error of the median: three standard errors, but at least the deviation of one collective.

        All ends on a rank may be recorded late, so the error does not decrease indefinitely with more collectives.
        """
        residual = self.difference - self._moved(drift)
        deviation = _deviation(residual)
        if len(residual) < 4:
            return max(deviation, float(self.highest.min() - self.lowest.max()) / 2)
        return deviation * 3 / sqrt(min(len(residual), 9))


def _lines(pairs: Mapping[int, _Pair], host_of: Mapping[int, str | None], reference: RankClock) -> dict[int, _Line]:
    """Return the offset and drift of each rank. All ranks of a host get the same values if these are consistent.

    A rank with the reference's host name gets the reference's clock, unless a collective would then end before it
    starts: two hosts may have the same name by mistake.
    """
    lines = {number: pair.line() for number, pair in pairs.items()}
    shared = dict(lines)
    for host in {host_of[number] for number in pairs} - {None}:
        members = [number for number in pairs if host_of[number] == host]
        is_reference = host == reference.host
        if is_reference:
            common = _ONE_CLOCK
        else:
            offsets, drifts = [lines[n].offset_ns for n in members], [lines[n].drift for n in members]
            common = _Line(_median(np.array(offsets)), median(drifts))
        for number in members:
            pair = pairs[number]
            if pair.allows(common) if is_reference else pair.agrees(lines[number], common):
                shared[number] = common
    return shared


def _median(values: Int64Column) -> int:
    """Return the median without loss of precision, because offsets may be hours in ns."""
    least = values.min()
    return int(least + np.int64(floor(np.median(values - least))))


def _deviation(values: Int64Column) -> float:
    """Return the standard deviation estimated from the median absolute deviation, which is robust to outliers."""
    return 1.4826 * float(np.median(np.abs(values - _median(values))))


def _drift(since: NDArray[np.float64], difference: Int64Column) -> float:
    """Return the slope of the difference, or 0 if it is not significant (Sen 1968, normal approximation)."""
    order = np.array_split(np.argsort(since, kind="stable"), min(len(since), _MOST_POINTS))
    num = len(order)
    if num < _FEWEST_POINTS:
        return 0.0
    offset = difference - difference.min()
    x = np.array([np.median(since[rows]) for rows in order])
    y = np.array([np.median(offset[rows]) for rows in order])
    first, second = np.triu_indices(num, 1)
    apart = x[second] > x[first]
    slopes = np.sort((y[second] - y[first])[apart] / (x[second] - x[first])[apart])
    if not len(slopes):
        return 0.0
    half = _SIGNIFICANT * sqrt(num * (num - 1) * (2 * num + 5) / 18)
    low = slopes[max(floor((len(slopes) - half) / 2), 0)]
    high = slopes[min(ceil((len(slopes) + half) / 2), len(slopes) - 1)]
    slope = float(np.median(slopes))
    if low <= 0 <= high or abs(slope) > _LARGEST_DRIFT:
        return 0.0
    moved = abs(slope) * float(x[-1] - x[0])
    return slope if moved > _deviation(offset - np.rint(since * slope).astype(np.int64)) else 0.0


def _host_clocks(ranks: Sequence[RankClock]) -> tuple[HostClock, ...]:
    by_host: dict[str, list[RankClock]] = {}
    for clock in ranks:
        if clock.host is not None:
            by_host.setdefault(clock.host, []).append(clock)
    return tuple(_host_clock(host, clocks) for host, clocks in sorted(by_host.items()))


def _host_clock(host: str, clocks: Sequence[RankClock]) -> HostClock:
    first = clocks[0]
    same = all((clock.offset_ns, clock.drift_ppm) == (first.offset_ns, first.drift_ppm) for clock in clocks)
    bounds = [clock.bound_ns for clock in clocks]
    known = [bound for bound in bounds if bound is not None]
    return HostClock(
        host=host,
        num_ranks=len(clocks),
        offset_ns=first.offset_ns if same else None,
        drift_ppm=first.drift_ppm if same else None,
        bound_ns=max(known) if len(known) == len(bounds) else None,
        noise_ns=max((clock.noise_ns for clock in clocks if clock.noise_ns is not None), default=None),
    )
