"""The slow-downs of a whole run, after the fact.

Of the last steps there is a row each, of earlier ones a summary of 100 steps or more. In summaries a slow-down is found
if it lasts for three of them or more. Where both show one, the steps count; but they show none that begins among the
first of them, since nothing tells how long normal steps take.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from ddpprof.model.pulse import Pulse, PulseSummaries
from ddpprof.model.slowdown import Slowdowns, StepSlowdown
from ddpprof.model.tables import rows_of
from ddpprof.monitor.job_steps import common_steps
from ddpprof.monitor.level_shifts import OF_SUMMARIES, LevelShift, LevelShifts
from ddpprof.monitor.pauses import pauses_in
from ddpprof.monitor.slowdowns import SlowdownWatch, portraits, reason_between, world_size_of

_COMPARED = 64
"""number of summaries that are compared for the cause, at most"""


def slowdowns_of_run(pulses: Mapping[int, Pulse]) -> Slowdowns:
    """Return the slow-downs of a run, and the pauses in its last steps."""
    steps = common_steps({rank: pulse.steps for rank, pulse in pulses.items()})
    if steps is None:
        return Slowdowns()
    watch = SlowdownWatch()
    watch.update(pulses)
    first_row = int(steps.number[0]) if len(steps) else 0
    found = watch.slowdowns
    unseen = [
        coarse
        for coarse in slowdowns_of_summaries(pulses)
        if coarse.first_step < first_row or not any(_overlap(coarse, one) for one in found)
    ]
    return Slowdowns(tuple(sorted([*unseen, *found], key=lambda one: one.first_step)), pauses_in(steps))


def _overlap(one: StepSlowdown, other: StepSlowdown) -> bool:
    first, second = sorted((one, other), key=lambda slowdown: slowdown.first_step)
    return first.last_step is None or first.last_step >= second.first_step


def slowdowns_of_summaries(pulses: Mapping[int, Pulse]) -> list[StepSlowdown]:
    """Return the slow-downs that last for three summaries or more."""
    ranks = _common({rank: pulse.summaries for rank, pulse in pulses.items()})
    if not ranks:
        return []
    one = next(iter(ranks.values()))
    detector = LevelShifts(OF_SUMMARIES)
    length_ns = np.median([summaries.median_ns for summaries in ranks.values()], axis=0).astype(np.int64)
    detector.feed(one.first_step, length_ns, one.num_flagged < one.num_steps)
    return [_slowdown(shift, detector, ranks, pulses) for shift in detector.shifts if shift.was_slow]


def _common(ranks: Mapping[int, PulseSummaries]) -> dict[int, PulseSummaries]:
    """Return the summaries of the same steps, in order, which a damaged file may not have them in.

    They differ if ranks have halved the number of theirs at other times.
    """
    if not ranks:
        return {}
    places = {rank: np.unique(one.first_step, return_index=True) for rank, one in ranks.items()}
    first = reduce(np.intersect1d, [steps for steps, _ in places.values()])
    rows = {rank: rows_of(ranks[rank], at[np.searchsorted(steps, first)]) for rank, (steps, at) in places.items()}
    same = np.ptp([one.num_steps for one in rows.values()], axis=0) == 0
    return {rank: rows_of(one, same) for rank, one in rows.items()}


def _slowdown(
    shift: LevelShift, detector: LevelShifts, ranks: Mapping[int, PulseSummaries], pulses: Mapping[int, Pulse]
) -> StepSlowdown:
    one = next(iter(ranks.values()))
    rows = np.flatnonzero(shift.holds(one.first_step))
    normal = np.flatnonzero(detector.normal_before(shift, one.first_step))
    before, after = (portraits(ranks, compared[-_COMPARED:], pulses) for compared in (normal, rows))
    reason = reason_between(before, after, world_size_of(pulses))
    is_over = shift.last_step is not None
    return StepSlowdown(
        first_step=shift.first_step,
        last_step=int(one.first_step[rows[-1]] + one.num_steps[rows[-1]] - 1) if is_over else None,
        before_ns=shift.before_ns,
        after_ns=shift.after_ns,
        num_steps=int(one.num_steps[rows].sum()),
        began_ns=int(one.start_ns[rows[0]]),
        ended_ns=int(one.end_ns[rows[-1]]) if is_over else None,
        cause=reason.cause,
        ranks=reason.ranks,
        part=reason.part,
        is_coarse=True,
    )
