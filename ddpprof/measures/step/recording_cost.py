"""What does ddpprof itself cost? Compare the job's steps with recording off, with light recording, and profiled.

    light ratio = median over pairs of (light step / the off step just before it)

Off and light steps alternate, so that a slow drift of the machine affects both equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ddpprof.measures.statistics.medians import median_known
from ddpprof.model import RecordedStep, StepMode


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """Recording cost of one rank. Medians of step times, ns; ``None`` if there were no such steps."""

    off_ns: int | None
    light_ns: int | None
    profiled_ns: int | None
    light_ratio: float | None
    num_pairs: int
    spread: float | None
    """spread of the off steps: (largest - smallest) / median; a light ratio closer to 1 than this is noise"""
    profiler_pause_ns: int | None
    """single pause of the training, to start the profiler and to write the trace"""

    @property
    def profiled_ratio(self) -> float | None:
        return self.profiled_ns / self.off_ns if self.profiled_ns and self.off_ns else None


def measure_recording_cost(steps: Sequence[RecordedStep], profiler_pause_ns: int | None) -> RecordingCost | None:
    """Measure the cost; ``None`` if no step was recorded."""
    if not steps:
        return None
    durations = {
        mode: [s.end_ns - s.start_ns for s in steps if s.mode is mode]
        for mode in (StepMode.OFF, StepMode.LIGHT, StepMode.PROFILED)
    }
    pairs = [
        (light.end_ns - light.start_ns) / (off.end_ns - off.start_ns)
        for off, light in pairwise(steps)
        if (off.mode, light.mode) == (StepMode.OFF, StepMode.LIGHT)
        and light.number == off.number + 1
        and off.end_ns > off.start_ns
    ]
    off_steps = durations[StepMode.OFF]
    typical = median(off_steps) if len(off_steps) > 1 else 0
    return RecordingCost(
        off_ns=median_known(off_steps),
        light_ns=median_known(durations[StepMode.LIGHT]),
        profiled_ns=median_known(durations[StepMode.PROFILED]),
        light_ratio=median(pairs) if pairs else None,
        num_pairs=len(pairs),
        spread=(max(off_steps) - min(off_steps)) / typical if typical else None,
        profiler_pause_ns=profiler_pause_ns,
    )
