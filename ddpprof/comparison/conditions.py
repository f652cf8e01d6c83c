"""The limits of ``ddpprof compare --fail-on``: parsed before anything is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddpprof.errors import DdpprofError, did_you_mean

_CONDITION = re.compile(r"\s*([a-z][a-z ]*?)\s*>\s*(\d+(?:\.\d+)?)\s*(%|ns|us|µs|ms|s)\s*")
NANOSECONDS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Condition:
    """A limit on the growth of a measure, as a fraction of its old value (``%``) or as time per step."""

    text: str
    metric: str
    fraction: float | None
    ns: float | None


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Parse the conditions. Raises `DdpprofError`."""
    from ddpprof.comparison.compare import METRICS

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
