"""Metrics of a running job, from the pulses of its ranks, named according to Prometheus and OpenTelemetry conventions.

The number of time series is bounded: the only labels are the rank and the part or quantile of a step, and only the
first `MOST_RANKS` ranks are exported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from ddpprof import rundir
from ddpprof.model import UNKNOWN
from ddpprof.model.pulse import Activity, Ended
from ddpprof.monitor.pulse_files import PulseHead, is_silent, read_heads, read_verdict

MOST_RANKS = 64
_STEPS = 64
_QUANTILES = (0.5, 0.9, 0.99)
_WITHOUT_WAITING = ("data", "forward", "backward", "optimizer")
_PARTS = (*_WITHOUT_WAITING, "wait", "own")


@dataclass(frozen=True, slots=True)
class MetricKind:
    """The description of a metric, without its values."""

    name: str
    """name without the prefix ``ddpprof_`` and, for a counter, without ``_total``"""
    documentation: str
    unit: str
    """UCUM unit, as required by OpenTelemetry; ``"1"`` for a dimensionless number"""
    is_counter: bool = False
    """whether its value only increases"""


STEPS = MetricKind("steps", "Number of training steps that the rank has finished", "{step}", is_counter=True)
STEP_SECONDS = MetricKind("step_seconds", f"Duration of the last {_STEPS} steps, by quantile", "s")
STEP_PART_SECONDS = MetricKind(
    "step_part_seconds",
    f"Mean duration of each part of the last {_STEPS} steps; own is the step without the time spent waiting for other "
    "ranks",
    "s",
)
STEP_AGE_SECONDS = MetricKind("step_age_seconds", "Time since the rank finished its last step", "s")
UP = MetricKind("up", "1 while the rank is training and its heartbeat is recent, else 0", "1")
ACTIVITY = MetricKind(
    "activity",
    f"Current activity of the rank: {', '.join(f'{activity.value} {activity.name.lower()}' for activity in Activity)}",
    "1",
)
HANG = MetricKind("hang", "1 if the last verdict says that the job hangs, else 0", "1")
METRICS = (STEPS, STEP_SECONDS, STEP_PART_SECONDS, STEP_AGE_SECONDS, UP, ACTIVITY, HANG)


Values = tuple[tuple[Mapping[str, str], float], ...]
"""labels and value of each sample"""


@dataclass(frozen=True, slots=True)
class Metric:
    kind: MetricKind
    values: Values


def read_metrics(out: Path) -> list[Metric]:
    """Return the metrics of the job that writes into `out`; empty if it has not begun."""
    if not rundir.is_run(out):
        return []
    directory = rundir.last_attempt(out)
    heads = list(islice(read_heads(directory, _STEPS), MOST_RANKS))
    if not heads:
        return []
    return [
        _each(STEPS, heads, lambda head: head.state.step),
        Metric(STEP_SECONDS, _quantiles(heads)),
        Metric(STEP_PART_SECONDS, _parts(heads)),
        _each(STEP_AGE_SECONDS, heads, _step_age_s),
        _each(UP, heads, _is_up),
        _each(ACTIVITY, heads, lambda head: head.state.activity),
        Metric(HANG, (({}, _hangs(directory)),)),
    ]


def _each(kind: MetricKind, heads: Sequence[PulseHead], value: Callable[[PulseHead], float]) -> Metric:
    """Return a metric with one value per rank."""
    return Metric(kind, tuple((_of(head), float(value(head))) for head in heads))


def _of(head: PulseHead, **more: str) -> dict[str, str]:
    return {"rank": str(head.identity.rank), **more}


def _quantiles(heads: Sequence[PulseHead]) -> Values:
    values = []
    for head in heads:
        lengths = head.steps.length_ns
        if len(lengths):
            found = np.quantile(lengths, _QUANTILES) / 1e9
            values += [
                (_of(head, quantile=f"{quantile:g}"), float(value))
                for quantile, value in zip(_QUANTILES, found, strict=True)
            ]
    return tuple(values)


def _parts(heads: Sequence[PulseHead]) -> Values:
    values = []
    for head in heads:
        steps = head.steps.with_all_waiting()
        knows_waiting = bool((steps.wait_ns != UNKNOWN).any())
        for part in _PARTS if knows_waiting else _WITHOUT_WAITING:
            column = getattr(steps, f"{part}_ns")
            known = column[column != UNKNOWN]
            if len(known):
                values.append((_of(head, part=part), float(known.mean()) / 1e9))
    return tuple(values)


def _step_age_s(head: PulseHead) -> float:
    return max(0.0, (time.time_ns() - head.state.step_since_ns) / 1e9)


def _is_up(head: PulseHead) -> float:
    return float(head.state.ended == Ended.NOT_YET and not is_silent(head.identity, head.state, time.time_ns()))


def _hangs(directory: Path) -> float:
    verdict = read_verdict(directory)
    return float(verdict is not None and verdict.resumed_unix_ns is None)
