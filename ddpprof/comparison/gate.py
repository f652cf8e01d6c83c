"""``--fail-on 'step>5%,exposed>2ms'``: which limits did the second run go beyond?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddpprof.comparison.compare import METRICS, Comparison
from ddpprof.errors import DdpprofError

_CONDITION = re.compile(r"\s*([a-z][a-z ]*?)\s*>\s*(\d+(?:\.\d+)?)\s*(%|ns|us|µs|ms|s)\s*")
NANOSECONDS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Condition:
    """A measure may grow by so much, as a part of what it was (``%``) or in time per step."""

    text: str
    metric: str
    fraction: float | None
    ns: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    condition: Condition
    failed: bool
    because: str


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Raises `DdpprofError`."""
    return tuple(_parse(part) for part in text.split(","))


def _parse(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise DdpprofError(f"--fail-on: {text.strip()!r} is no condition. Write, say: --fail-on 'step>5%,exposed>2ms'")
    metric, number, unit = match.groups()
    if metric not in METRICS:
        raise DdpprofError(f"--fail-on: {metric!r} is not compared. Choose of: {', '.join(METRICS)}")
    is_fraction = unit == "%"
    return Condition(
        text=text.strip(),
        metric=metric,
        fraction=float(number) / 100 if is_fraction else None,
        ns=None if is_fraction else float(number) * NANOSECONDS[unit],
    )


def judge(comparison: Comparison, conditions: Sequence[Condition]) -> tuple[Verdict, ...]:
    """A measure fails if it grew by more than its limit, and the growth is not noise.

    What cannot be measured fails, too: a gate that has nothing to look at must not open.
    """
    return tuple(_judge(comparison, condition) for condition in conditions)


def _judge(comparison: Comparison, condition: Condition) -> Verdict:
    change = next((change for change in comparison.metrics if change.metric == condition.metric), None)
    if change is None or change.difference is None:
        return Verdict(condition, True, f"{condition.metric} is not in both runs")
    grew = change.difference.shift
    said = f"{condition.metric} changed by {grew / 1e6:+.2f} ms"
    if change.fraction is not None:
        said += f", {change.fraction:+.1%}"
    if condition.ns is not None:
        beyond = grew > condition.ns
    elif change.fraction is not None:
        beyond = change.fraction > (condition.fraction or 0)
    else:
        beyond = grew > 0  # from nothing, any growth is beyond every fraction
    if beyond and change.difference.is_beyond_noise is False:
        return Verdict(condition, False, f"{said}: within the noise of the steps")
    return Verdict(condition, beyond, said)
