"""The numbers of every step and rank, for the reader to choose from; and which of many ranks are worth seeing first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ddpprof.render.sections.layout import MAX_RANKS
from ddpprof.render.sections.steps import PARTS, bar_parts_ns, typical_step
from ddpprof.report import Report, StepReport

_MAX_TIMELINES = 4
"""of ranks, where there are more than a screen has room for"""


def steps_data(report: Report) -> dict[str, Any] | None:
    """Per step one row for each rank, ns; ``None`` where no step was profiled."""
    typical = typical_step(report)
    if typical is None:
        return None
    numbers = sorted({step.step for rank in report.ranks for step in rank.measured_steps})
    return {
        "parts": PARTS,
        "columns": ("compute", "comm", "overlap", "exposed", "trailing"),
        "ranks": [rank.rank for rank in report.ranks],
        "shown": worth_seeing(report),
        "drawn": worth_seeing(report, _MAX_TIMELINES),
        "typical": typical,
        "steps": {number: _rows(report, number) for number in numbers},
    }


def _rows(report: Report, number: int) -> list[list[int | None] | None]:
    found = ({step.step: step for step in rank.measured_steps}.get(number) for rank in report.ranks)
    return [None if step is None or step.parts is None else _row(step) for step in found]


def _row(step: StepReport) -> list[int | None]:
    assert step.parts is not None
    times = (step.compute_ns, step.comm_ns, step.overlap_ns, step.exposed_ns, step.trailing_ns)
    return [*bar_parts_ns(step.parts), *times]


def worth_seeing(report: Report, most: int = MAX_RANKS) -> tuple[int, ...]:
    """All ranks, if they are few. Of many: stragglers, the slowest, the fastest, those between, first and last."""
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
    """Ranks, the one last that computes longest: with its waiting left out, which makes all steps of a job alike."""
    busy = {
        rank.rank: one.parts.step_ns - one.parts.exposed_comm_ns - one.parts.idle_ns
        for rank in report.ranks
        for one in rank.measured_steps
        if one.step == step and one.parts is not None
    }
    return sorted(busy, key=lambda rank: busy[rank])


def steps_json(report: Report) -> bytes | None:
    data = steps_data(report)
    return None if data is None else json.dumps(data, separators=(",", ":")).encode()
