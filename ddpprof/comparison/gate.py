"""Parse and evaluate the limits of ``ddpprof compare --fail-on``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ddpprof.comparison import METRICS, Comparison, MetricChange
from ddpprof.errors import DdpprofError, did_you_mean
from ddpprof.statistics.between_runs import MOST_RUNS

_CONDITION = re.compile(r"\s*([a-z][a-z ]*?)\s*>\s*(\d+(?:\.\d+)?)\s*(%|ns|us|µs|ms|s)\s*")
NANOSECONDS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Condition:
    """A limit on the increase of a measure, as a fraction of its value in A (``%``) or as a time per step."""

    text: str
    metric: str
    fraction: float | None
    ns: float | None


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Parse the conditions. Raises `DdpprofError`."""
    return tuple(_parse(part, METRICS) for part in text.split(","))


def _parse(text: str, metrics: Sequence[str]) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise DdpprofError(f"--fail-on: {text.strip()!r} is not a condition. Write: --fail-on 'step>5%,exposed>2ms'")
    metric, number, unit = match.groups()
    if metric not in metrics:
        raise DdpprofError(
            f"--fail-on: {metric!r} is not a compared measure.{did_you_mean(metric, metrics)} "
            f"Choose from: {', '.join(metrics)}"
        )
    is_fraction = unit == "%"
    return Condition(
        text=text.strip(),
        metric=metric,
        fraction=float(number) / 100 if is_fraction else None,
        ns=None if is_fraction else float(number) * NANOSECONDS[unit],
    )


class GateResult(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ConditionVerdict:
    condition: Condition
    outcome: GateResult
    because: str
    runs_needed: int | None = None
    """if the result is unknown: number of runs per side that a result requires"""


def judge(comparison: Comparison, conditions: Sequence[Condition]) -> tuple[ConditionVerdict, ...]:
    """Evaluate each condition.

    A condition fails if its measure is missing, because a gate must not pass without a check.
    """
    return tuple(_judge(comparison, condition) for condition in conditions)


def overall(verdicts: Sequence[ConditionVerdict]) -> GateResult:
    """Return the worst outcome of the verdicts."""
    outcomes = {verdict.outcome for verdict in verdicts}
    return next((one for one in (GateResult.FAILED, GateResult.UNKNOWN) if one in outcomes), GateResult.PASSED)


def _judge(comparison: Comparison, condition: Condition) -> ConditionVerdict:
    change = next((change for change in comparison.metrics if change.metric == condition.metric), None)
    if change is None or change.difference is None or change.a_ns is None:
        return ConditionVerdict(condition, GateResult.FAILED, f"{condition.metric} is missing from A or B")
    limit_ns = condition.ns if condition.ns is not None else (condition.fraction or 0) * change.a_ns
    said, exceeds = _said(change), change.difference.may_exceed(limit_ns)
    if exceeds is not None:
        return ConditionVerdict(condition, GateResult.FAILED if exceeds else GateResult.PASSED, said)
    needed = change.runs_needed(limit_ns)
    if not change.difference.is_measured:
        said += f"; {_count(change)} too few to tell whether this is noise"
    elif needed is not None and needed > MOST_RUNS:
        said += f"; even {MOST_RUNS} runs on each side would not be enough, because the runs vary too much"
    return ConditionVerdict(condition, GateResult.UNKNOWN, said, needed)


def _said(change: MetricChange) -> str:
    difference = change.difference
    assert difference is not None
    said = f"{change.metric} changed by {difference.shift_ns / 1e6:+.2f} ms"
    if change.fraction is not None:
        said += f", {change.fraction:+.1%}"
    if difference.is_measured:
        said += f" (between {difference.low_ns / 1e6:+.2f} and {difference.high_ns / 1e6:+.2f} ms)"
    return said


def _count(change: MetricChange) -> str:
    num_a, num_b = len(change.runs_a_ns), len(change.runs_b_ns)
    return "one run on each side is" if num_a == num_b == 1 else f"{num_a} and {num_b} runs are"
