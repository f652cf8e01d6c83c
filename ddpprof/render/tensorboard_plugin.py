"""Prepare steps and collectives so that the views of torch-tb-profiler show the same numbers as the report.

The plugin pairs the i-th collective of each rank, in order of start time, with the i-th collective of every other rank.
It shows nothing if ranks have different numbers of collectives. `PluginViews.missing` describes what the plugin cannot
show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import UNKNOWN, CollectiveKind, Step
from ddpprof.model.backends import ON_HOST
from ddpprof.model.tables import PluginCollective, PluginView
from ddpprof.report.topics import RankSummary
from ddpprof.topics.collective_matching import MatchedCollectives, RankCollectives, match_collectives
from ddpprof.topics.collectives import sizes_of_rows
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.steps.timeline import DrawnRank

_NAMES = {
    CollectiveKind.ALL_REDUCE: "all_reduce",
    CollectiveKind.BROADCAST: "broadcast",
    CollectiveKind.ALL_GATHER: "all_gather",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.REDUCE: "reduce",
}
"""kind → name of the collective; the plugin knows only these names"""
_NAME_OF_OTHERS = "all_reduce"
_NEGLIGIBLE_NS = 1000
_HOST_BACKENDS = tuple(f"{name}:" for name in ON_HOST)


@dataclass(frozen=True, slots=True)
class PluginViews:
    """Views of all ranks."""

    of_rank: Mapping[int, PluginView]
    missing: tuple[str, ...]
    """sentences that say what the plugin cannot show"""


@dataclass(frozen=True, slots=True)
class _ShownRank:
    """The collectives of one rank, and which of them the plugin shows."""

    about: DrawnRank
    table: RankCollectives
    message_bytes: Mapping[int, int]
    """row of the table → size in bytes; only for rows whose size the recorder knows"""
    on_host: bool
    """whether communication runs on host threads, as with gloo"""
    steps: tuple[Step, ...]
    start_ns: NDArray[np.int64]
    """start of each collective; with `on_host`, clipped to the step, because the plugin then uses the host's steps"""
    end_ns: NDArray[np.int64]
    counts: NDArray[np.bool_]


def plugin_views(ranks: Iterable[tuple[RankSummary, DrawnRank]]) -> PluginViews:
    """Return the views of the ranks that have traces."""
    known = sorted((_rank(summary, about) for summary, about in ranks), key=lambda one: one.about.rank)
    tables = [one.table for one in known]
    matched = match_collectives(tables)
    sizes = sizes_of_rows(tables, matched, {one.about.rank: one.message_bytes for one in known})
    lines = _lines(known, matched)
    starts = _in_common_order(known, lines)
    views = {
        one.about.rank: PluginView(
            one.about.device,
            one.about.epoch_ns,
            one.steps,
            _shown(one, lines[:, column], starts[:, column], sizes[column]),
        )
        for column, one in enumerate(known)
    }
    return PluginViews(views, tuple(_missing(known, lines, starts)))


def _rank(summary: RankSummary, about: DrawnRank) -> _ShownRank:
    found = summary.of(ACROSS)
    assert found is not None, "every rank is measured"
    assert found.traced is not None, "only ranks with a trace have a drawing"
    table = found.traced.collectives
    comm = table.collectives
    on_host = any(about.names[name].startswith(_HOST_BACKENDS) for name in np.unique(comm.name).tolist())
    start_ns, end_ns = comm.start_ns.copy(), comm.end_ns.copy()
    if on_host:
        for index in about.measured:
            rows, step = comm.step == index, about.steps[index]
            start_ns[rows] = np.clip(start_ns[rows], step.start_ns, step.end_ns)
            end_ns[rows] = np.clip(end_ns[rows], step.start_ns, step.end_ns)
    counts = np.isin(comm.step, about.measured) & (end_ns > start_ns)
    steps = tuple(about.steps[index] for index in about.measured)
    return _ShownRank(about, table, found.traced.message_bytes, on_host, steps, start_ns, end_ns, counts)


def _lines(ranks: Sequence[_ShownRank], matched: MatchedCollectives) -> NDArray[np.int64]:
    """Return the rows of the collectives that the plugin shows on every rank.

    The shape is (n, num_ranks). Collectives are in the order of their start times on the lowest rank.
    """
    if len(ranks) == 1:
        return np.flatnonzero(ranks[0].counts)[:, None]
    rows = matched.rows[(matched.rows != UNKNOWN).all(axis=1)].astype(np.int64)
    for column, one in enumerate(ranks):
        rows = rows[one.counts[rows[:, column]]]
    order = np.argsort(ranks[0].start_ns[rows[:, 0]], kind="stable") if ranks else np.empty(0, np.int64)
    in_order: NDArray[np.int64] = rows[order]
    return in_order


def _in_common_order(ranks: Sequence[_ShownRank], lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return start times that increase on every rank. Starts are moved earlier where ranks have different orders.

    Collectives may run on several threads or streams, so the plugin would otherwise pair the wrong collectives.
    """
    starts = np.empty(lines.shape, np.int64)
    places = np.arange(len(lines))
    for column, one in enumerate(ranks):
        # The latest times that ascend by at least 1 ns and are not later than the actual starts.
        latest = np.minimum.accumulate((one.start_ns[lines[:, column]] - places)[::-1])[::-1]
        starts[:, column] = latest + places
    return starts


def _shown(
    one: _ShownRank, rows: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> dict[tuple[int, int], PluginCollective]:
    prefix = "gloo" if one.on_host else "nccl"
    comm = one.table.collectives
    places = np.arange(len(comm)) - np.searchsorted(comm.start_ns, comm.start_ns)
    shown = {}
    for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
        name = _NAMES.get(CollectiveKind(comm.kind[row]), _NAME_OF_OTHERS)
        size = int(sizes[row])
        # The duration of a kernel stays the same. A moved annotation of zero length only determines the order.
        is_moved_kernel = prefix == "nccl" and start != one.start_ns[row]
        end = start if is_moved_kernel else int(one.end_ns[row])
        key = int(comm.start_ns[row]), int(places[row])
        shown[key] = PluginCollective(f"{prefix}:{name}", start, end, None if size == UNKNOWN else size)
    return shown


def _missing(ranks: Sequence[_ShownRank], lines: NDArray[np.int64], starts: NDArray[np.int64]) -> Iterator[str]:
    if not any(one.steps for one in ranks):
        yield "no Distributed view: there are no steps"
        return
    if not any(one.counts.any() for one in ranks):
        yield "no Distributed view: no step has a collective"
        return
    left_out = max(int(one.counts.sum()) - len(lines) for one in ranks)
    if left_out:
        yield (
            f"up to {left_out} collectives per rank are not counted: the Distributed view shows only collectives that "
            f"all loaded ranks called{'' if len(lines) else ', and there are none'}"
        )
    if len(ranks) == 1:
        yield "only one rank was read: the Distributed view counts all its communication as transfer, none as waiting"
    unknown, moved_ns = set(), 0
    for one, rows, start in zip(ranks, lines.T, starts.T, strict=True):
        unknown |= {CollectiveKind(kind) for kind in one.table.collectives.kind[rows]} - set(_NAMES)
        moved_ns = max(moved_ns, int((one.start_ns[rows] - start).max(initial=0)))
    if unknown:
        names = ", ".join(sorted(kind.name.lower().replace("_", "-") for kind in unknown))
        yield f"{names} are shown as {_NAME_OF_OTHERS}, because the plugin supports only five kinds of collectives"
    if moved_ns > _NEGLIGIBLE_NS:
        yield f"collectives that ranks start in different orders are shown up to {moved_ns / 1000:.0f} µs early"
