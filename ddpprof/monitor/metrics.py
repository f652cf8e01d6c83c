"""Metrics of a running job, from the pulses of its ranks: names and units as Prometheus and OpenTelemetry want them.

Names end in their unit, seconds or bytes, and those of counters in ``_total``. The only labels are the rank, and the
part or quantile of a step, and no more than `MOST_RANKS` ranks are told apart, so that their number is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddpprof import rundir
from ddpprof.errors import DdpprofError
from ddpprof.model import UNKNOWN
from ddpprof.model.pulse import Activity, Ended
from ddpprof.monitor.hangs import read_verdict
from ddpprof.monitor.pulse_files import PulseHead, read_head

MOST_RANKS = 64
_STEPS = 64
_QUANTILES = (0.5, 0.9, 0.99)
_PARTS = ("data", "forward", "backward", "optimizer", "wait", "own")
_SILENT_S = 5.0


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """name without the prefix ``ddpprof_``, and for a counter without ``_total``"""
    documentation: str
    unit: str
    """``seconds``, ``bytes``, or empty for a number"""
    is_counter: bool
    values: tuple[tuple[Mapping[str, str], float], ...]
    """labels and value of each sample"""


def read_metrics(out: Path) -> list[Metric]:
    """Return the metrics of the job that writes into `out`; none while it has not begun."""
    if not rundir.is_run(out):
        return []
    directory = rundir.last_attempt(out)
    heads = list(_heads(directory))
    if not heads:
        return []
    return [
        _each(heads, "steps", "Training steps that the rank has finished", "", lambda head: head.state.num_steps, True),
        _quantiles(heads),
        _parts(heads),
        _each(heads, "step_age_seconds", "Time since the rank finished its last step", "seconds", _step_age_s),
        _each(heads, "up", "1 while the rank trains and gives signs of life, else 0", "", _is_up),
        _each(heads, "activity", f"What the rank does: {_ACTIVITIES}", "", lambda head: head.state.activity),
        Metric(
            "hang",
            "1 while the job hangs, by the last verdict of who watches it, else 0",
            "",
            False,
            (({}, _hangs(directory)),),
        ),
    ]


_ACTIVITIES = ", ".join(f"{activity.value} {activity.name.lower()}" for activity in Activity)


def _heads(directory: Path) -> Iterator[PulseHead]:
    for rank in rundir.pulses_in(directory)[:MOST_RANKS]:
        with suppress(OSError, DdpprofError):
            yield read_head(directory, rank, _STEPS)


def _each(
    heads: Sequence[PulseHead],
    name: str,
    documentation: str,
    unit: str,
    value: Callable[[PulseHead], float],
    is_counter: bool = False,
) -> Metric:
    """Return a metric with one value for each rank."""
    values = tuple((_of(head), float(value(head))) for head in heads)
    return Metric(name, documentation, unit, is_counter, values)


def _of(head: PulseHead, **more: str) -> dict[str, str]:
    return {"rank": str(head.identity.rank), **more}


def _quantiles(heads: Sequence[PulseHead]) -> Metric:
    values = []
    for head in heads:
        lengths = head.steps.length_ns
        if len(lengths):
            found = np.quantile(lengths, _QUANTILES) / 1e9
            values += [
                (_of(head, quantile=f"{quantile:g}"), float(value))
                for quantile, value in zip(_QUANTILES, found, strict=True)
            ]
    return Metric("step_seconds", f"Length of the last {_STEPS} steps, by quantile", "seconds", False, tuple(values))


def _parts(heads: Sequence[PulseHead]) -> Metric:
    values = []
    for head in heads:
        for part in _PARTS:
            column = getattr(head.steps, f"{part}_ns")
            known = column[column != UNKNOWN]
            if len(known):
                values.append((_of(head, part=part), float(known.mean()) / 1e9))
    about = f"Mean of the parts of the last {_STEPS} steps: own is a step without its waiting for other ranks"
    return Metric("step_part_seconds", about, "seconds", False, tuple(values))


def _step_age_s(head: PulseHead) -> float:
    return max(0.0, (time.time_ns() - head.state.step_since_ns) / 1e9)


def _is_up(head: PulseHead) -> float:
    is_silent = time.time_ns() - max(head.state.tick_ns, head.identity.created_ns) > _SILENT_S * 1e9
    return float(head.state.ended == Ended.NOT_YET and not is_silent)


def _hangs(directory: Path) -> float:
    verdict = read_verdict(directory)
    return float(verdict is not None and verdict.resumed_unix_ns is None)
