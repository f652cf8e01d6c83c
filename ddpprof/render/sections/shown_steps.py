"""Which step is shown first, and, of many ranks, which ones?"""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.layout import MAX_RANKS, cut_off
from ddpprof.report import Report


def typical_step(report: Report) -> int | None:
    """Return the profiled step of median length, by its slowest rank: one step for all ranks."""
    longest: dict[int, int] = {}
    for rank in report.ranks:
        for step in rank.measured_steps:
            longest[step.step] = max(longest.get(step.step, 0), step.duration_ns)
    in_order = sorted(longest, key=lambda number: longest[number])
    return in_order[(len(in_order) - 1) // 2] if in_order else None


def worth_seeing(report: Report, most: int = MAX_RANKS) -> tuple[int, ...]:
    """Return all ranks if they are few; of many, the stragglers, slowest, fastest, first, last and some in between."""
    numbers = [rank.rank for rank in report.ranks]
    if len(numbers) <= most:
        return tuple(numbers)
    late = report.across.stragglers if report.across is not None else None
    stragglers = [one.rank for one in late.stragglers] if late is not None else []
    by_length = _by_own_time(report, typical_step(report)) or numbers
    even = [by_length[round(at * (len(by_length) - 1) / (most - 1))] for at in range(most)]
    found = dict.fromkeys([*stragglers[: most // 4], by_length[-1], by_length[0], numbers[0], numbers[-1], *even])
    return tuple(sorted(list(found)[:most]))


def _by_own_time(report: Report, step: int | None) -> Sequence[int]:
    """Return ranks by computing time, longest last. Waiting is left out, as it makes all steps of a job alike."""
    busy = {
        rank.rank: one.parts.step_ns - one.parts.exposed_comm_ns - one.parts.idle_ns
        for rank in report.ranks
        for one in rank.measured_steps
        if one.step == step and one.parts is not None
    }
    return sorted(busy, key=lambda rank: busy[rank])


def rows_worth_seeing(report: Report, rows: Sequence[tuple[str, ...]]) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Return the rows worth showing, whose first cell is the rank, and a note about the others."""
    if len(rows) <= MAX_RANKS:
        return tuple(rows), ""
    worth = set(map(str, worth_seeing(report)))
    shown = tuple(row for row in rows if row[0] in worth)[:MAX_RANKS]
    return shown, cut_off(len(rows), len(shown))
