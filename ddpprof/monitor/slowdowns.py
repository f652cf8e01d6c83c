"""The slow-downs of a job, with their causes, found while it runs.

A slow-down's size and cause are refined as long as it lasts, and stay once it is over. It is withdrawn if all of its
steps together turn out to have been hardly longer, or steps of this job to differ as much as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from ddpprof.model.pulse import Pulse, PulseSteps, PulseSummaries
from ddpprof.model.slowdown import SlowdownCause, StepSlowdown
from ddpprof.model.tables import rows_of
from ddpprof.monitor.causes import Portrait, RankChange, Reason, portrait, reason_for
from ddpprof.monitor.job_steps import JobSteps, common_steps
from ddpprof.monitor.level_shifts import LevelShift, LevelShifts

_MOST_KEPT = 200
"""number of slow-downs that are kept; a job of weeks may have more"""
_COMPARED_BEFORE = 200
_COMPARED_AFTER = 512
"""number of steps that are compared for the cause, at most"""

_Rows = TypeVar("_Rows", PulseSteps, PulseSummaries)


class SlowdownWatch:
    """A watch over one job. It has to be shown the pulses often enough that no step leaves their rings unseen."""

    def __init__(self) -> None:
        self._found: list[StepSlowdown] = []
        """a slow-down for each of the detector's"""
        self._detector = LevelShifts()
        self._last_step = -1
        self._normal: list[Mapping[int, Portrait]] = []
        """how each rank spent its steps before each slow-down"""

    @property
    def slowdowns(self) -> tuple[StepSlowdown, ...]:
        """All slow-downs so far, in the order of their steps; the last one may still last."""
        return tuple(one for one, shift in zip(self._found, self._detector.shifts, strict=True) if shift.was_slow)

    def update(self, pulses: Mapping[int, Pulse]) -> None:
        """Look at the steps that all of these ranks have finished since the last time."""
        steps = common_steps({rank: pulse.steps for rank, pulse in pulses.items()})
        if steps is None:
            return
        new = steps.number > self._last_step
        if not new.any():
            return
        self._detector.feed(steps.number[new], steps.length_ns[new], steps.is_usual[new])
        self._last_step = int(steps.number[-1])
        for index, shift in enumerate(self._detector.shifts):
            if index == len(self._found):
                normal = self._detector.normal_before(shift, steps.number) & steps.is_usual
                rows = np.flatnonzero(normal)[-_COMPARED_BEFORE:]
                self._normal.append(portraits(steps.ranks, rows, pulses))
                self._found.append(self._slowdown(index, shift, steps, pulses))
            elif self._found[index].last_step is None:
                self._found[index] = self._slowdown(index, shift, steps, pulses)
        if len(self._found) > _MOST_KEPT:
            self._forget()

    def _forget(self) -> None:
        """Keep the half that made steps longest in all, and the last one, which may still last."""
        shifts = self._detector.shifts
        ended = sorted(range(len(shifts) - 1), key=lambda index: shifts[index].lost_ns)
        kept = sorted([*ended[-_MOST_KEPT // 2 :], len(shifts) - 1])
        self._found, self._normal = [self._found[index] for index in kept], [self._normal[index] for index in kept]
        shifts[:] = [shifts[index] for index in kept]

    def _slowdown(self, index: int, shift: LevelShift, steps: JobSteps, pulses: Mapping[int, Pulse]) -> StepSlowdown:
        slow = shift.holds(steps.number) & (steps.number > shift.first_step) & steps.is_usual
        rows = np.flatnonzero(slow)[-_COMPARED_AFTER:]
        reason = reason_between(self._normal[index], portraits(steps.ranks, rows, pulses), world_size_of(pulses))
        known = self._found[index] if index < len(self._found) else None
        if known is not None and reason.cause is SlowdownCause.UNKNOWN:
            reason = Reason(known.cause, known.ranks, known.part, known.first_gradient_later_ns)
        return slowdown_of(shift, reason, steps, None if known is None else known.began_ns)


def slowdown_of(shift: LevelShift, reason: Reason, steps: JobSteps, began_ns: int | None) -> StepSlowdown:
    """Return the slow-down with its times, as far as its steps are among these."""
    begins = np.flatnonzero(steps.number == shift.first_step)
    ends = np.flatnonzero(steps.number == shift.last_step) if shift.last_step is not None else begins[:0]
    return StepSlowdown(
        first_step=shift.first_step,
        last_step=shift.last_step,
        before_ns=shift.before_ns,
        after_ns=shift.after_ns,
        num_steps=shift.num_steps,
        began_ns=began_ns if began_ns is not None or not len(begins) else int(steps.start_ns[begins[0]]),
        ended_ns=int(steps.start_ns[ends[0]] + steps.length_ns[ends[0]]) if len(ends) else None,
        cause=reason.cause,
        ranks=reason.ranks,
        part=reason.part,
        first_gradient_later_ns=reason.first_gradient_later_ns,
    )


def portraits(ranks: Mapping[int, _Rows], rows: np.ndarray, pulses: Mapping[int, Pulse]) -> dict[int, Portrait]:
    """Return how each rank spends the steps, or the summaries, with these indices."""
    found = {rank: portrait(rows_of(columns, rows), pulses[rank].samples) for rank, columns in ranks.items()}
    return {rank: one for rank, one in found.items() if one is not None}


def reason_between(before: Mapping[int, Portrait], after: Mapping[int, Portrait], world_size: int) -> Reason:
    """Return why steps became longer, judged by the ranks that are known before and after.

    If these all wait, they may wait for one of the job's other ranks.
    """
    ranks = {rank: RankChange(before[rank], after[rank]) for rank in before if rank in after}
    reason = reason_for(ranks) if ranks else Reason(SlowdownCause.UNKNOWN, ())
    if reason.cause is SlowdownCause.LINK and len(ranks) < world_size:
        return Reason(SlowdownCause.UNKNOWN, reason.ranks)
    return reason


def world_size_of(pulses: Mapping[int, Pulse]) -> int:
    """Return the number of ranks of the job, of which these may be a part."""
    return max((one.identity.world_size for one in pulses.values()), default=0)
