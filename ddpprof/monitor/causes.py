"""Find the ranks that cause a slowdown, and the part of the step that takes longer.

    own time    step time - time waiting for other ranks, in DDP's all-reduces and buffer broadcasts and in the
                script's collectives
    at fault    the rank whose own time, or one part of it, grew most, if it grew by at least half of the growth of the
                step, and all ranks with at least 0.6 of that rank's growth

If all ranks are at fault, all of them became slower. If some ranks are at fault, the other ranks wait for them. If no
rank is at fault and all ranks wait longer, the network is the cause, unless some ranks of the job are unknown. The
operating system's counters are checked first, because a rank that waits for a CPU core has a longer own time and makes
all other ranks wait. If a rank's own time grows, but its training thread neither computes more nor waits for a core,
and other threads of its process run more, the training thread waits for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddpprof.model.pulse import PulseSamples, PulseSteps, PulseSummaries
from ddpprof.model.tables import UNKNOWN, Int64Column
from ddpprof.model.whole_run import SlowdownCause, StepPart

_HALF = 0.5
_AS_BAD = 0.6
"""another rank is also at fault if it slowed down by at least this share of the worst rank's slowdown"""
_NOTABLE = 0.4
"""throttling, or waiting for a CPU core, counts as the cause if it accounts for at least this share of a slowdown"""
_MOST = 0.8
"""waiting for a CPU core is the cause if it accounts for at least this share of the growth of a rank's own time; one
part of the step alone becomes longer if it has at least this share
"""
_LEAST_KNOWN = 4
"""a median of waiting times is computed only if at least this many of them are known"""
_FAULTS_PER_STEP = 1.0
_CLOCK_FELL = 0.95


@dataclass(frozen=True, slots=True)
class Portrait:
    """Median or mean values per step of a rank, in ns unless the name has another unit; ``None`` if unknown."""

    length_ns: float
    parts: Mapping[StepPart, float]
    """part of the step → the part of the rank's own time that is spent in it"""
    wait_ns: float | None
    first_gradient_ns: float | None = None
    mean_own_ns: float | None = None
    """always a mean, like all counters of the operating system"""
    cpu_ns: float | None = None
    throttled_ns: float | None = None
    queued_ns: float | None = None
    process_cpu_ns: float | None = None
    training_queued_ns: float | None = None
    major_faults: float | None = None
    core_khz: float | None = None


@dataclass(frozen=True, slots=True)
class RankChange:
    """Typical values of a rank before and during a slowdown."""

    before: Portrait
    after: Portrait

    @property
    def own_ns(self) -> float:
        return sum(map(self.part_grew, StepPart))

    def part_grew(self, part: StepPart) -> float:
        """Return the growth of a part of the step in ns; 0 if its duration before or during the slowdown is unknown."""
        before, after = self.before.parts.get(part), self.after.parts.get(part)
        return 0.0 if before is None or after is None else after - before

    @property
    def largest_part(self) -> StepPart:
        """The part of the step that grew most."""
        return max(StepPart, key=self.part_grew)

    @property
    def slower_ns(self) -> float:
        """Growth of the rank's own time or, if larger, of the part that grew most."""
        return max(self.own_ns, self.part_grew(self.largest_part))

    def grew(self, name: str) -> float:
        """Return the growth of the `Portrait` field with this name; 0 if a value is unknown."""
        before, after = getattr(self.before, name), getattr(self.after, name)
        return 0.0 if before is None or after is None else after - before


@dataclass(frozen=True, slots=True)
class Reason:
    cause: SlowdownCause
    ranks: tuple[int, ...]
    part: StepPart | None = None
    first_gradient_later_ns: int | None = None


def portrait(steps: PulseSteps | PulseSummaries, samples: PulseSamples, *, of_means: bool = False) -> Portrait | None:
    """Return the median values of these steps, or `of_means` their means; ``None`` if there are no steps."""
    if not len(steps):
        return None
    average = np.mean if of_means else np.median
    wait = _average(steps.wait_ns, average)
    parts = {part: float(average(column)) for part, column in parts_of(steps).items() if len(column)}
    if wait is None:
        parts.pop(StepPart.BACKWARD, None)
    return Portrait(
        length_ns=float(average(_lengths(steps))),
        parts=parts,
        wait_ns=wait,
        mean_own_ns=_mean_own_ns(steps),
        first_gradient_ns=_average(steps.first_gradient_ns, average) if isinstance(steps, PulseSteps) else None,
        **_from_system(steps, samples),
    )


def _mean_own_ns(steps: PulseSteps | PulseSummaries) -> float | None:
    known = steps.wait_ns != UNKNOWN
    return float(np.mean((_lengths(steps) - steps.wait_ns)[known])) if known.any() else None


def _lengths(steps: PulseSteps | PulseSummaries) -> Int64Column:
    return steps.length_ns if isinstance(steps, PulseSteps) else steps.median_ns


def parts_of(steps: PulseSteps | PulseSummaries) -> dict[StepPart, Int64Column]:
    """Return the duration of each part of the rank's own time, in ns.

    For the backward pass, only rows with a known waiting time are used.
    """
    known = {StepPart.DATA: steps.data_ns, StepPart.FORWARD: steps.forward_ns, StepPart.OPTIMIZER: steps.optimizer_ns}
    others = sum((steps.backward_ns, *known.values()))
    if isinstance(steps, PulseSteps):
        others = others + steps.save_ns + steps.evaluation_ns
    backward = (steps.backward_ns - steps.wait_ns)[steps.wait_ns != UNKNOWN]
    return {**known, StepPart.OTHER: np.maximum(_lengths(steps) - others, 0), StepPart.BACKWARD: backward}


def _average(column: Int64Column, average: Callable[[Int64Column], np.floating[Any]]) -> float | None:
    """Return the median or mean of the known values; ``None`` if too few are known."""
    known = column[column != UNKNOWN]
    return float(average(known)) if len(known) >= min(_LEAST_KNOWN, len(column)) else None


def _from_system(steps: PulseSteps | PulseSummaries, samples: PulseSamples) -> dict[str, float | None]:
    """Return the operating system's counters per step, for the steps between the first and the last sample.

    Samples are one second apart. Counters are interpolated linearly between them.
    """
    if len(samples) < 2:
        return {}
    begins, ends = steps.start_ns, steps.start_ns + steps.length_ns if isinstance(steps, PulseSteps) else steps.end_ns
    sampled = (begins >= samples.at_ns[0]) & (ends <= samples.at_ns[-1])
    begins, ends = begins[sampled], ends[sampled]
    num_steps = len(begins) if isinstance(steps, PulseSteps) else int(steps.num_steps[sampled].sum())
    if not num_steps:
        return {}
    found: dict[str, float | None] = {}
    for name in _COUNTERS:
        column = getattr(samples, name)
        if not (column == UNKNOWN).any():
            counted = np.interp(ends, samples.at_ns, column) - np.interp(begins, samples.at_ns, column)
            found[name] = float(counted.sum()) / num_steps
    step_at = np.searchsorted(begins, samples.at_ns, side="right") - 1
    in_steps = (step_at >= 0) & (samples.at_ns <= ends[step_at]) & (samples.core_khz != UNKNOWN)
    rates = samples.core_khz[in_steps]
    return {**found, "core_khz": float(np.median(rates)) if len(rates) else None}


_COUNTERS = ("throttled_ns", "queued_ns", "major_faults", "cpu_ns", "process_cpu_ns", "training_queued_ns")


def reason_for(ranks: Mapping[int, RankChange]) -> Reason:
    """Return the reason why the steps of these ranks became longer."""
    longer_ns = float(np.median([change.grew("length_ns") for change in ranks.values()]))
    everybody = tuple(sorted(ranks))
    if longer_ns <= 0:
        return Reason(SlowdownCause.UNKNOWN, everybody)
    by_system = _by_system(ranks, longer_ns)
    if by_system is not None:
        return by_system
    guilty = at_fault({rank: ranks[rank].slower_ns for rank in everybody}, longer_ns)
    if guilty:
        return _by_own_time({rank: ranks[rank] for rank in guilty}, longer_ns, len(guilty) == len(ranks))
    waits = [change.grew("wait_ns") for change in ranks.values()]
    if min(waits) >= _HALF * longer_ns:
        return Reason(SlowdownCause.LINK, everybody)
    return Reason(SlowdownCause.UNKNOWN, everybody)


def at_fault(slower_ns: Mapping[int, float], longer_ns: float) -> tuple[int, ...]:
    """Return the ranks at fault, as defined at the top of this module; empty if there are none.

    `slower_ns`: additional time of each rank. `longer_ns`: additional time of the step.
    """
    worst_ns = max(slower_ns.values())
    if worst_ns < _HALF * longer_ns:
        return ()
    return tuple(rank for rank, ns in slower_ns.items() if ns >= _AS_BAD * worst_ns)


def _by_system(ranks: Mapping[int, RankChange], longer_ns: float) -> Reason | None:
    """Return a cause that the operating system's counters show for some ranks; ``None`` if they show none."""
    for cause, is_cause in (
        (SlowdownCause.THROTTLED, lambda one: one.grew("throttled_ns") >= _NOTABLE * longer_ns),
        (SlowdownCause.PAGING, lambda one: one.grew("major_faults") >= _FAULTS_PER_STEP),
        (SlowdownCause.THREAD, lambda one: _waits_for_thread(one, longer_ns)),
        (SlowdownCause.PROCESSOR, lambda one: _lacks_processor(one, longer_ns)),
        (SlowdownCause.CLOCK, lambda one: _is_clocked_down(one, longer_ns)),
    ):
        hit = tuple(rank for rank in sorted(ranks) if is_cause(ranks[rank]))
        if hit:
            return Reason(cause, hit)
    return None


def _waits_for_thread(change: RankChange, longer_ns: float) -> bool:
    """Return True if a rank became slower because its training thread waits while other threads of its process run.

    A thread that holds Python's GIL lengthens all parts of a step in which Python code runs. If only waiting for
    batches takes longer, other threads may load them. If only the backward pass does, they may compute it.
    """
    slower_ns, others_ns = change.grew("mean_own_ns"), change.grew("process_cpu_ns") - change.grew("cpu_ns")
    if slower_ns < _HALF * longer_ns or others_ns < _HALF * slower_ns:
        return False
    if max(change.part_grew(part) for part in (StepPart.DATA, StepPart.BACKWARD)) >= _MOST * change.own_ns:
        return False
    return change.grew("cpu_ns") < _HALF * slower_ns and change.grew("training_queued_ns") < _MOST * slower_ns


def _lacks_processor(change: RankChange, longer_ns: float) -> bool:
    """Return True if a rank became slower because it waits for a CPU core, not because it computes more or sleeps."""
    enough_ns = max(_NOTABLE * longer_ns, _MOST * change.own_ns)
    return change.grew("queued_ns") >= enough_ns and change.grew("cpu_ns") < _HALF * longer_ns


def _is_clocked_down(change: RankChange, longer_ns: float) -> bool:
    before, after = change.before.core_khz, change.after.core_khz
    if not before or after is None:
        return False
    return after < _CLOCK_FELL * before and change.grew("cpu_ns") >= _HALF * longer_ns


def _by_own_time(guilty: Mapping[int, RankChange], longer_ns: float, are_all: bool) -> Reason:
    worst = max(guilty.values(), key=lambda change: change.slower_ns)
    most = worst.largest_part
    part = most if worst.part_grew(most) >= _HALF * worst.slower_ns else None
    if part is StepPart.DATA:
        cause = SlowdownCause.DATA
    else:
        cause = SlowdownCause.EVERYBODY if are_all and len(guilty) > 1 else SlowdownCause.OWN_TIME
    later_ns = worst.grew("first_gradient_ns")
    return Reason(cause, tuple(guilty), part, round(later_ns) if later_ns >= _HALF * longer_ns else None)
