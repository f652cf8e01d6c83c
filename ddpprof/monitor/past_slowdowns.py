"""The slow-downs of a whole run, after the fact.

Of the last steps there is a row each, of earlier ones a summary of 100 steps or more. In summaries a slow-down is found
if it lasts for three of them or more. Where both show one, the steps count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from ddpprof.model.pulse import Pulse, PulseSummaries, select
from ddpprof.model.slowdown import Slowdowns, StepSlowdown
from ddpprof.monitor.causes import Portrait, portrait
from ddpprof.monitor.job_steps import common_steps
from ddpprof.monitor.level_shifts import OF_SUMMARIES, LevelShift, LevelShifts
from ddpprof.monitor.pauses import pauses_in
from ddpprof.monitor.slowdowns import SlowdownWatch, reason_between

_COMPARED = 64
"""number of summaries that are compared for the cause, at most"""


def slowdowns_of_run(pulses: Mapping[int, Pulse]) -> Slowdowns:
    """Return the slow-downs of a run, and the pauses in its last steps."""
    steps = common_steps({rank: pulse.steps for rank, pulse in pulses.items()})
    if steps is None:
        return Slowdowns()
    watch = SlowdownWatch()
    watch.update(pulses)
    first_row = int(steps.number[0]) if len(steps) else None
    earlier = [one for one in slowdowns_of_summaries(pulses) if first_row is None or one.first_step < first_row]
    return Slowdowns((*earlier, *watch.slowdowns), pauses_in(steps))


def slowdowns_of_summaries(pulses: Mapping[int, Pulse]) -> list[StepSlowdown]:
    """Return the slow-downs that last for three summaries or more."""
    ranks = _common({rank: pulse.summaries for rank, pulse in pulses.items()})
    if not ranks:
        return []
    one = next(iter(ranks.values()))
    detector = LevelShifts(OF_SUMMARIES)
    length_ns = np.median([summaries.median_ns for summaries in ranks.values()], axis=0).astype(np.int64)
    detector.feed(one.first_step, length_ns, one.num_flagged < one.num_steps)
    return [_slowdown(shift, detector.shifts, ranks, pulses) for shift in detector.shifts if shift.was_slow]


def _common(ranks: Mapping[int, PulseSummaries]) -> dict[int, PulseSummaries]:
    """Return the summaries of the same steps, which differ if ranks have halved the number of theirs at other times."""
    if not ranks:
        return {}
    first = reduce(np.intersect1d, [summaries.first_step for summaries in ranks.values()])
    rows = {rank: select(one, np.searchsorted(one.first_step, first)) for rank, one in ranks.items()}
    same = np.ptp([one.num_steps for one in rows.values()], axis=0) == 0
    return {rank: select(one, same) for rank, one in rows.items()}


def _slowdown(
    shift: LevelShift, shifts: list[LevelShift], ranks: Mapping[int, PulseSummaries], pulses: Mapping[int, Pulse]
) -> StepSlowdown:
    first = next(iter(ranks.values())).first_step
    slow = (first >= shift.first_step) & (first <= (first[-1] if shift.last_step is None else shift.last_step))
    normal = first < shift.first_step
    for other in shifts:
        if other.first_step < shift.first_step:
            normal &= (first < other.first_step) | (first > (other.last_step or 0))
    rows = np.flatnonzero(slow)
    reason = reason_between(
        _portraits(ranks, np.flatnonzero(normal)[-_COMPARED:], pulses), _portraits(ranks, rows[-_COMPARED:], pulses)
    )
    last = next(iter(ranks.values()))
    is_over = shift.last_step is not None
    return StepSlowdown(
        first_step=shift.first_step,
        last_step=int(first[rows[-1]] + last.num_steps[rows[-1]] - 1) if is_over else None,
        before_ns=shift.before_ns,
        after_ns=shift.after_ns,
        num_steps=int(last.num_steps[rows].sum()),
        began_ns=int(last.start_ns[rows[0]]),
        ended_ns=int(last.end_ns[rows[-1]]) if is_over else None,
        cause=reason.cause,
        ranks=reason.ranks,
        part=reason.part,
        is_coarse=True,
    )


def _portraits(
    ranks: Mapping[int, PulseSummaries], rows: np.ndarray, pulses: Mapping[int, Pulse]
) -> dict[int, Portrait]:
    found = {rank: portrait(select(one, rows), pulses[rank].samples) for rank, one in ranks.items()}
    return {rank: one for rank, one in found.items() if one is not None}
