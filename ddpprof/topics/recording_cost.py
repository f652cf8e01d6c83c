"""Measure ddpprof's overhead: compare steps with recording off, with light recording, and with the profiler.

    light ratio = median over pairs of consecutive steps of (light step / off step); for an even number of pairs, the
                  geometric mean of the middle two

The off step comes first in half of the pairs (off light, off light, light off, light off), so that neither a slow drift
of the machine nor a script in which every second or fourth step is longer biases the ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from statistics import median
from typing import Annotated

from ddpprof.engine.numbers import Number
from ddpprof.model import RecordedStep, StepMode
from ddpprof.statistics import median_known


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """Recording overhead of one rank. Step times are medians in ns, or ``None`` without such steps."""

    off_ns: Annotated[int | None, Number("median step with recording off")]
    light_ns: Annotated[int | None, Number("median step with light recording")]
    profiled_ns: Annotated[int | None, Number("median step under the profiler")]
    light_ratio: Annotated[
        float | None,
        Number("duration of a light step divided by the duration of the adjacent unrecorded step, median over pairs"),
    ]
    num_pairs: int
    spread: float | None
    """spread of the off steps: (largest - smallest) / median"""
    profiler_pause_ns: int | None
    """time for which training paused to start the profiler and to write the trace"""

    @property
    def profiled_ratio(self) -> float | None:
        return self.profiled_ns / self.off_ns if self.profiled_ns and self.off_ns else None

    def is_noise(self, ratio: float) -> bool:
        """Return whether this ratio may be due to chance, because unrecorded steps vary as much."""
        return ratio < 1 or (self.spread is not None and abs(ratio - 1) < self.spread)


def measure_recording_cost(steps: Sequence[RecordedStep], profiler_pause_ns: int | None) -> RecordingCost | None:
    """Measure the recording overhead; ``None`` if no step was recorded."""
    if not steps:
        return None
    durations = {
        mode: [s.end_ns - s.start_ns for s in steps if s.mode is mode]
        for mode in (StepMode.OFF, StepMode.LIGHT, StepMode.PROFILED)
    }
    ratios = _ratios_of_pairs(steps)
    off_steps = durations[StepMode.OFF]
    typical = median(off_steps) if len(off_steps) > 1 else 0
    return RecordingCost(
        off_ns=median_known(off_steps),
        light_ns=median_known(durations[StepMode.LIGHT]),
        profiled_ns=median_known(durations[StepMode.PROFILED]),
        light_ratio=exp(median(map(log, ratios))) if ratios else None,
        num_pairs=len(ratios),
        spread=(max(off_steps) - min(off_steps)) / typical if typical else None,
        profiler_pause_ns=profiler_pause_ns,
    )


def _ratios_of_pairs(steps: Sequence[RecordedStep]) -> list[float]:
    """Return the duration ratio light / off of each pair of consecutive steps. No step belongs to two pairs."""
    ratios, last = [], -1
    for one, other in pairwise(steps):
        took_ns = {step.mode: step.end_ns - step.start_ns for step in (one, other)}
        is_pair = took_ns.keys() == {StepMode.OFF, StepMode.LIGHT} and other.number == one.number + 1
        if is_pair and one.number > last and min(took_ns.values()) > 0:
            ratios.append(took_ns[StepMode.LIGHT] / took_ns[StepMode.OFF])
            last = other.number
    return ratios
