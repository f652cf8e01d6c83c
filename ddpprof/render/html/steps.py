"""The numbers of every step and rank, for the reader to select from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ddpprof.layout import PARTS
from ddpprof.render.sections.steps import bar_parts_ns, typical_step, worth_seeing
from ddpprof.report import Report, StepReport

_MAX_TIMELINES = 4
"""maximum number of timelines drawn at first, if there are more ranks than fit on a screen"""

COLUMNS: Mapping[str, Callable[[StepReport], int | None]] = {
    "compute": lambda step: step.compute_ns,
    "comm": lambda step: step.comm_ns,
    "overlap": lambda step: step.overlap_ns,
    "exposed": lambda step: step.exposed_ns,
    "trailing": lambda step: step.trailing_ns,
}
"""measures of a step that the page shows in addition to its parts"""


def steps_data(report: Report) -> dict[str, Any] | None:
    """Return one row per rank and step, ns; ``None`` if no step was profiled."""
    typical = typical_step(report)
    if typical is None:
        return None
    numbers = sorted({step.step for rank in report.ranks for step in rank.measured_steps})
    return {
        "parts": PARTS,
        "columns": tuple(COLUMNS),
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
    return [*bar_parts_ns(step.parts), *(time_ns(step) for time_ns in COLUMNS.values())]


def steps_json(report: Report) -> bytes | None:
    data = steps_data(report)
    return None if data is None else json.dumps(data, separators=(",", ":")).encode()
