"""Find the slowdowns of a job and their causes, during and after the run, and the pauses between its steps.

All-reduces synchronize the ranks, so a step takes nearly the same time on each rank. The job's step time is the median
over the ranks. If a step has a flag on one rank, the flag applies to all ranks: while one rank saves a checkpoint, the
other ranks wait.

If only some steps become longer, for example each third step of a rank with a CPU limit, medians hide the slowdown or
show only a part of it. A second detector therefore compares means of eight steps. A slowdown that it finds replaces
those of single steps if it lasts for 20 seconds, and if the mean of its steps differs from their median. Slowdowns that
follow each other without a normal step in between are one slowdown if they have the same cause on the same ranks.

The size and cause of a slowdown are updated while it lasts, and are final once it has ended. A slowdown is withdrawn if
the median of all its steps turns out to be hardly above the normal step time, or if normal step times turn out to vary
by as much as the slowdown.

After the run, a pulse contains the most recent steps one by one, and summaries of 100 or more earlier steps. A slowdown
in summaries is detected if it lasts for at least three summaries. If the most recent steps and the summaries show the
same slowdown, the steps are used. The stored steps cannot show a slowdown that begins with the first stored step,
because the normal step time before it is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from math import inf
from typing import TypeVar

import numpy as np
from msgspec import structs

from ddpprof.model.pulse import Pulse, PulseSteps, PulseSummaries, StepFlag
from ddpprof.model.tables import UNKNOWN, Int64Column, rows_of
from ddpprof.model.whole_run import (
    Pause,
    PauseKind,
    SlowdownCause,
    Slowdowns,
    StepPart,
    StepSlowdown,
    UnevenWork,
    share_of_rises,
)
from ddpprof.monitor.causes import Portrait, RankChange, Reason, at_fault, parts_of, portrait, reason_for
from ddpprof.monitor.level_shifts import OF_MEANS, OF_SUMMARIES, TWO_LEVELS, Flags, LevelShift, LevelShifts
from ddpprof.monitor.whole_run import weighted_median


@dataclass(frozen=True, slots=True)
class JobSteps:
    """Steps that all ranks have finished. Each row is one step, with its values on each rank."""

    number: Int64Column
    start_ns: Int64Column
    length_ns: Int64Column
    flags: Int64Column
    ranks: Mapping[int, PulseSteps]

    @property
    def is_usual(self) -> Flags:
        """Mask of the steps without a known reason to be longer."""
        usual: Flags = self.flags == 0
        return usual

    def __len__(self) -> int:
        return len(self.number)


def common_steps(ranks: Mapping[int, PulseSteps]) -> JobSteps | None:
    """Return the steps that all ranks have finished; ``None`` if there are no ranks."""
    if not ranks:
        return None
    number: Int64Column = reduce(np.intersect1d, [steps.number for steps in ranks.values()])
    rows = {rank: rows_of(steps, np.searchsorted(steps.number, number)) for rank, steps in ranks.items()}
    return JobSteps(
        number=number,
        start_ns=np.median([steps.start_ns for steps in rows.values()], axis=0).astype(np.int64),
        length_ns=np.median([steps.length_ns for steps in rows.values()], axis=0).astype(np.int64),
        flags=np.bitwise_or.reduce([steps.flags for steps in rows.values()]),
        ranks=rows,
    )


_KINDS = (
    (StepFlag.EVALUATED, PauseKind.EVALUATION),
    (StepFlag.COMPILED, PauseKind.COMPILATION),
    (StepFlag.RECORDED, PauseKind.RECORDING),
    (StepFlag.BEGAN_EPOCH | StepFlag.RAN_OUT, PauseKind.EPOCH),
)
"""flag of a step → kind of pause; a step with several flags counts as the first of these kinds"""


def pauses_in(steps: JobSteps, slowdowns: Sequence[StepSlowdown] = ()) -> tuple[Pause, ...]:
    """Return the pauses by kind; empty if there is no normal step to compare them with.

    Steps of `slowdowns` that are long for an unknown reason are not counted again.

    If saving is less than half of the additional time of a step, or if the step also has an evaluation, only the time
    spent saving counts as saving. In a step that begins an epoch, only waiting for data counts as the beginning.
    """
    if not steps.is_usual.any():
        return ()
    normal_ns = int(np.median(steps.length_ns[steps.is_usual]))
    left_ns = np.maximum(steps.length_ns - normal_ns, 0)
    saved, evaluated = ((steps.flags & flag) != 0 for flag in (int(StepFlag.SAVED), int(StepFlag.EVALUATED)))
    saving_ns = np.where(saved, np.max([rank.save_ns for rank in steps.ranks.values()], axis=0), 0)
    only_saved = saved & ~evaluated & (2 * saving_ns >= left_ns)
    saving_ns = np.where(only_saved, left_ns, np.minimum(left_ns, saving_ns))
    pauses = []
    if saved.any():
        ranks = tuple(rank for rank, rows in steps.ranks.items() if (rows.flags & int(StepFlag.SAVED)).any())
        pauses.append(Pause(PauseKind.SAVE, int(saved.sum()), int(saving_ns.sum()), ranks=ranks))
    left_ns, left = left_ns - saving_ns, ~only_saved
    for flag, kind in _KINDS:
        mine = left & ((steps.flags & int(flag)) != 0)
        left &= ~mine
        if kind is PauseKind.EPOCH:
            waiting_ns = _additional_waiting_for_data(steps, left_ns)
            if waiting_ns[mine].any():
                pauses.append(Pause(kind, int(mine.sum()), int(waiting_ns[mine].sum())))
            left_ns, left = np.where(mine, left_ns - waiting_ns, left_ns), left | mine
        elif mine.any():
            extra_ns = int(left_ns[mine].sum())
            evaluates = kind is PauseKind.EVALUATION
            where = _where_longer(steps, mine, extra_ns) if evaluates else (None, ())
            grows_ns = _growth(left_ns[mine]) if evaluates else None
            pauses.append(Pause(kind, int(mine.sum()), extra_ns, None, *where, grows_ns=grows_ns))
    long = left & ((steps.flags & ~_UNEXPLAINED) == 0) & (left_ns > (_LONG - 1) * normal_ns)
    for one in slowdowns:
        long &= (steps.number < one.first_step) | (steps.number > (inf if one.last_step is None else one.last_step))
    if long.any():
        extra_ns, every = int(left_ns[long].sum()), _regular_distance(steps.number[long])
        part, ranks = _where_longer(steps, long, extra_ns)
        every_ns = _regular_time(steps, long, normal_ns) if every is None else None
        pauses.append(Pause(PauseKind.UNKNOWN, int(long.sum()), extra_ns, every, part, ranks, every_ns=every_ns))
    return tuple(pauses)


_UNEXPLAINED = int(StepFlag.SAVED | StepFlag.BEGAN_EPOCH | StepFlag.RAN_OUT)
"""flags of steps that may be long for a further, unknown reason"""


def _additional_waiting_for_data(steps: JobSteps, most_ns: Int64Column) -> Int64Column:
    """Return how much longer than usual each step waits for data on the rank that waits longest, up to `most_ns`."""
    waiting_ns = np.max([rank.data_ns for rank in steps.ranks.values()], axis=0)
    usual_ns = int(np.median(waiting_ns[steps.is_usual]))
    longer_ns: Int64Column = np.minimum(most_ns, np.maximum(waiting_ns - usual_ns, 0))
    return longer_ns


def _growth(pauses_ns: Int64Column) -> tuple[int, int] | None:
    """Return the first and the last pause, if pauses become longer and longer, and at least twice as long."""
    times_ns = pauses_ns.tolist()
    if len(times_ns) < _FEW_PAUSES or share_of_rises(times_ns) < _NEARLY_ALL or times_ns[-1] < 2 * times_ns[0]:
        return None
    return times_ns[0], times_ns[-1]


_FEW_PAUSES = 4
_NEARLY_ALL = 0.9
"""pauses grow if the later one of two pauses is longer in at least this share of all pairs"""


def _where_longer(steps: JobSteps, long: Flags, extra_ns: int) -> tuple[StepPart | None, tuple[int, ...]]:
    """Return the part that takes most of the additional time of long steps, and the ranks on which it takes longer.

    The part is ``None`` if it takes less than half of the additional time on every rank. Each long step includes the
    step before it, because ranks that wait for another rank may already have begun their next step.
    """
    both = long | np.append(long[1:], False)
    longer: dict[StepPart, dict[int, float]] = {}
    for rank, rows in steps.ranks.items():
        for part, column in parts_of(rows.with_all_waiting()).items():
            if len(column) == len(steps):  # not if waiting is unknown
                extra = column[both] - np.median(column[steps.is_usual])
                longer.setdefault(part, {})[rank] = float(extra.sum())
    most = max(longer, key=lambda part: max(longer[part].values()))
    ranks = at_fault(longer[most], extra_ns)
    return (most, ranks) if ranks else (None, ())


def uneven_work(steps: JobSteps) -> UnevenWork | None:
    """Return how much longer the slowest rank works than the average rank, in steps of usual length.

    Steps that ddpprof recorded are included, because recording takes about the same time on all ranks.
    """
    rows = [rank.with_all_waiting() for rank in steps.ranks.values()]
    if len(rows) < 2 or any((rank.wait_ns == UNKNOWN).any() for rank in rows):
        return None
    own_ns = np.stack([rank.own_ns for rank in rows])[:, (steps.flags & ~int(StepFlag.RECORDED)) == 0]
    if own_ns.shape[1] < _FEW_STEPS:
        return None
    is_slowest = np.bincount(own_ns.argmax(axis=0), minlength=len(rows))
    lost_ns = own_ns.max(axis=0) - own_ns.mean(axis=0)
    typical = lost_ns <= np.quantile(lost_ns, _TYPICAL)
    return UnevenWork(round(float(lost_ns[typical].mean())), own_ns.shape[1], float(is_slowest.max() / own_ns.shape[1]))


_FEW_STEPS = 10
_TYPICAL = 0.9
"""only this fraction of the steps is used: the least uneven ones. The other steps may be uneven for other reasons;
leaving them out keeps the result conservative
"""


_LONG = 1.5
"""a step counts as long if it takes more than this many times as long as a normal step"""
_MOST_MULTIPLES = 0.8
"""long steps are regular if at least half of the distances between them are equal, and at least this share of all
distances are multiples of that distance
"""


def _regular_distance(numbers: Int64Column) -> int | None:
    """Return the distance between steps if it is regular, otherwise ``None``."""
    distances = np.diff(numbers)
    if len(distances) < _FEW_DISTANCES:
        return None
    values, counts = np.unique(distances, return_counts=True)
    distance = int(values[np.argmax(counts)])
    is_regular = distance > 1 and 2 * counts.max() >= len(distances)
    return distance if is_regular and np.mean(distances % distance == 0) >= _MOST_MULTIPLES else None


_FEW_DISTANCES = 3


def _regular_time(steps: JobSteps, long: Flags, normal_ns: int) -> int | None:
    """Return the time between the starts of long steps if it is regular and much longer than a normal step.

    Consecutive steps count as one, because the work that makes them long may take longer than a step.
    """
    begins = np.append(True, np.diff(steps.number[long]) > 1)
    times_ns = np.diff(steps.start_ns[long][begins])
    usual_ns = float(np.median(times_ns)) if len(times_ns) >= _FEW_TIMES else 0.0
    if usual_ns < _LEAST_OF_TIMER * normal_ns:
        return None
    multiples = np.maximum(1, np.round(times_ns / usual_ns))
    is_multiple = np.abs(times_ns / usual_ns - multiples) <= _CLOSE
    return round(usual_ns) if np.mean(is_multiple) >= _MOST_MULTIPLES else None


_FEW_TIMES = 5
_CLOSE = 0.1
"""the time between two long steps may differ from a multiple of the usual time by this fraction of the usual time"""
_LEAST_OF_TIMER = 3
"""the usual time between long steps must be at least this many times as long as a normal step"""


_MOST_KEPT = 200
"""maximum number of slowdowns that are kept; a job that runs for weeks may have more"""
_COMPARED_BEFORE = 200
_COMPARED_AFTER = 512
"""maximum number of steps in a slowdown that are compared with `_COMPARED_BEFORE` earlier steps to find the cause"""

_Rows = TypeVar("_Rows", PulseSteps, PulseSummaries)


class SlowdownWatch:
    """Detects the slowdowns of one job. Call `update` often enough that no step is overwritten before it is read."""

    def __init__(self) -> None:
        self._of_steps, self._of_means = _Tracker(LevelShifts()), _Tracker(LevelShifts(OF_MEANS), of_means=True)
        self._last_step = -1
        self._end_ns = 0

    @property
    def slowdowns(self) -> tuple[StepSlowdown, ...]:
        """All slowdowns so far, in the order of their steps. The last slowdown may not have ended."""
        of_means = _at_least(LASTING_S * 1e9, self._of_means.slowdowns, self._end_ns)
        return joined(self._of_steps.slowdowns, of_means)

    def update(self, pulses: Mapping[int, Pulse]) -> None:
        """Process the steps that all ranks have finished since the last call."""
        steps = common_steps({rank: pulse.steps for rank, pulse in pulses.items()})
        if steps is None:
            return
        new = steps.number > self._last_step
        if not new.any():
            return
        self._last_step, self._end_ns = int(steps.number[-1]), int(steps.start_ns[-1] + steps.length_ns[-1])
        for tracker in (self._of_steps, self._of_means):
            tracker.update(steps, new, pulses)


class _Tracker:
    """The slowdowns that one detector finds, with their causes."""

    def __init__(self, detector: LevelShifts, *, of_means: bool = False) -> None:
        """`of_means`: whether to compare means instead of medians, and to keep only slowdowns in which they differ."""
        self._detector, self._of_means = detector, of_means
        self._found: list[StepSlowdown] = []
        """slowdowns found so far, one for each level shift in the detector"""
        self._normal: list[Mapping[int, Portrait]] = []
        """for each slowdown: typical values of each rank before the slowdown"""
        self._is_uneven: list[bool] = []
        """for each slowdown: whether the mean of its steps has differed from their median"""

    @property
    def slowdowns(self) -> list[StepSlowdown]:
        """Slowdowns that were not withdrawn. A slowdown of means counts if it, or one that it follows, is uneven."""
        rows = zip(self._found, self._detector.shifts, self._is_uneven, strict=True)
        found: list[StepSlowdown] = []
        for one, shift, is_uneven in rows:
            follows = bool(found) and found[-1].last_step == one.first_step - 1
            if shift.was_slow and (is_uneven or follows or not self._of_means):
                found.append(one)
        return found

    def update(self, steps: JobSteps, new: Flags, pulses: Mapping[int, Pulse]) -> None:
        """Process the steps in the mask `new`."""
        self._detector.feed(steps.number[new], steps.length_ns[new], steps.is_usual[new])
        for index, shift in enumerate(self._detector.shifts):
            if index == len(self._found):
                normal = self._detector.normal_before(shift, steps.number) & steps.is_usual
                rows = np.flatnonzero(normal)[-_COMPARED_BEFORE:]
                self._normal.append(portraits(steps.ranks, rows, pulses, of_means=self._of_means))
                self._is_uneven.append(False)
                self._found.append(self._slowdown(index, shift, steps, pulses))
            elif self._found[index].last_step is None:
                self._found[index] = self._slowdown(index, shift, steps, pulses)
        if len(self._found) > _MOST_KEPT:
            self._forget()

    def _forget(self) -> None:
        """Keep only the half of the slowdowns that lost the most time, and the last slowdown, which may be ongoing."""
        shifts = self._detector.shifts
        ended = sorted(range(len(shifts) - 1), key=lambda index: shifts[index].lost_ns)
        kept = sorted([*ended[-_MOST_KEPT // 2 :], len(shifts) - 1])
        self._found, self._normal = [self._found[index] for index in kept], [self._normal[index] for index in kept]
        self._is_uneven = [self._is_uneven[index] for index in kept]
        shifts[:] = [shifts[index] for index in kept]

    def _slowdown(self, index: int, shift: LevelShift, steps: JobSteps, pulses: Mapping[int, Pulse]) -> StepSlowdown:
        slow = shift.holds(steps.number) & (steps.number > shift.first_step) & steps.is_usual
        rows = np.flatnonzero(slow)[-_COMPARED_AFTER:]
        after = portraits(steps.ranks, rows, pulses, of_means=self._of_means)
        reason = reason_between(self._normal[index], after, world_size_of(pulses))
        known = self._found[index] if index < len(self._found) else None
        if known is not None and reason.cause is SlowdownCause.UNKNOWN:
            reason = Reason(known.cause, known.ranks, known.part, known.first_gradient_later_ns)
        self._is_uneven[index] |= _are_uneven(steps.length_ns[rows])
        return slowdown_of(shift, reason, steps, None if known is None else known.began_ns)


def _are_uneven(length_ns: Int64Column) -> bool:
    """Return True if the mean of the steps differs from their median, and not only because of a few long steps."""
    each = OF_MEANS.steps_per_value
    means = length_ns[: len(length_ns) // each * each].reshape(-1, each).mean(axis=1)
    return len(means) > 0 and bool(abs(np.log(np.median(means) / np.median(length_ns))) >= TWO_LEVELS)


LASTING_S = 20.0
"""slowdowns that last for this many seconds are reported while the job runs"""
_SHORT_S = 5.0
"""shorter slowdowns are left out of the report, because other work on the machine may have disturbed the job"""
_SHORT_SHARE = 0.2
"""in a run that took few seconds, slowdowns are left out only if they are shorter than this share of the run"""


def duration_ns(one: StepSlowdown, end_ns: int) -> float:
    """Return how long a slowdown lasted or, if it has not ended, how long it had lasted at `end_ns`."""
    return inf if one.began_ns is None else (end_ns if one.ended_ns is None else one.ended_ns) - one.began_ns


def joined(of_steps: Sequence[StepSlowdown], of_means: Sequence[StepSlowdown]) -> tuple[StepSlowdown, ...]:
    """Join the slowdowns of both detectors. Each slowdown of means replaces the slowdowns of steps that it overlaps."""
    kept = list(of_steps)
    for one in of_means:
        covered = [other for other in kept if _overlap(one, other) and _is_same(one, other)]
        first = min([one, *covered], key=lambda other: other.first_step)
        kept = [other for other in kept if other not in covered]
        kept.append(structs.replace(one, first_step=first.first_step, began_ns=first.began_ns))
    ordered = sorted(kept, key=lambda other: other.first_step)
    return tuple(one for chain in chains(ordered) for one in _merged(chain))


def _is_same(of_means: StepSlowdown, of_steps: StepSlowdown) -> bool:
    """Return True if both slowdowns have the same cause, or if the slowdown of steps began at about the same time."""
    causes = [(one.cause, one.ranks) for one in (of_means, of_steps)]
    return causes[0] == causes[1] or of_steps.first_step > of_means.first_step - of_means.num_steps


def chains(slowdowns: Sequence[StepSlowdown]) -> list[list[StepSlowdown]]:
    """Group slowdowns that follow each other without a normal step in between."""
    found: list[list[StepSlowdown]] = []
    for one in slowdowns:
        if found and found[-1][-1].last_step == one.first_step - 1:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _merged(chain: Sequence[StepSlowdown]) -> list[StepSlowdown]:
    """Merge slowdowns in a chain that follow each other and have the same cause on the same ranks."""
    groups = (list(group) for _, group in groupby(chain, key=lambda one: (one.cause, one.ranks)))
    return [_as_one(group) for group in groups]


def _as_one(parts: Sequence[StepSlowdown]) -> StepSlowdown:
    if len(parts) == 1:
        return parts[0]
    after_ns, num_steps = (np.array([getattr(one, name) for one in parts]) for name in ("after_ns", "num_steps"))
    return structs.replace(
        parts[-1],
        first_step=parts[0].first_step,
        began_ns=parts[0].began_ns,
        before_ns=parts[0].before_ns,
        after_ns=weighted_median(after_ns, num_steps),
        num_steps=int(num_steps.sum()),
        part=parts[0].part if len({one.part for one in parts}) == 1 else None,
    )


def lasting(slowdowns: Sequence[StepSlowdown], run: Mapping[int, Pulse] | None = None) -> tuple[StepSlowdown, ...]:
    """Return the slowdowns that lasted too long to be a short disturbance.

    `run`: pulses of a run that is over; in a short run, shorter slowdowns count.
    """
    now_ns, least_ns = time.time_ns(), _SHORT_S * 1e9
    if run:
        now_ns = max(max([pulse.state.last_ns, *pulse.steps.start_ns[-1:].tolist()]) for pulse in run.values())
        took_ns = now_ns - min(pulse.identity.created_ns for pulse in run.values())
        least_ns = min(least_ns, _SHORT_SHARE * took_ns)
    return tuple(_at_least(least_ns, slowdowns, now_ns))


def _at_least(least_ns: float, slowdowns: Sequence[StepSlowdown], now_ns: int) -> list[StepSlowdown]:
    """Return the slowdowns that, together with those that follow each other, lasted for at least `least_ns`."""
    found = (chain for chain in chains(slowdowns) if sum(duration_ns(one, now_ns) for one in chain) >= least_ns)
    return [one for chain in found for one in chain]


def slowdown_of(shift: LevelShift, reason: Reason, steps: JobSteps, began_ns: int | None) -> StepSlowdown:
    """Convert a level shift to a slowdown. A start or an end that is neither known nor in `steps` is ``None``.

    `began_ns`: known start, if any.
    """
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


def portraits(
    ranks: Mapping[int, _Rows], rows: np.ndarray, pulses: Mapping[int, Pulse], *, of_means: bool = False
) -> dict[int, Portrait]:
    """Return the typical values of each rank over the given rows of its steps or summaries."""
    found = {
        rank: portrait(rows_of(columns, rows), pulses[rank].samples, of_means=of_means)
        for rank, columns in ranks.items()
    }
    return {rank: one for rank, one in found.items() if one is not None}


def reason_between(before: Mapping[int, Portrait], after: Mapping[int, Portrait], world_size: int) -> Reason:
    """Return the reason why steps became longer, from the ranks that are known both before and during the slowdown.

    The network is the cause only if all ranks of the job are known, because the ranks might be waiting for an unknown
    rank.
    """
    ranks = {rank: RankChange(before[rank], after[rank]) for rank in before if rank in after}
    reason = reason_for(ranks) if ranks else Reason(SlowdownCause.UNKNOWN, ())
    if reason.cause is SlowdownCause.LINK and len(ranks) < world_size:
        return Reason(SlowdownCause.UNKNOWN, reason.ranks)
    return reason


def world_size_of(pulses: Mapping[int, Pulse]) -> int:
    """Return the number of ranks of the job. `pulses` may contain only some of the ranks."""
    return max((one.identity.world_size for one in pulses.values()), default=0)


_COMPARED = 64
"""maximum number of summaries of steps that are compared to find the cause"""


def slowdowns_of_run(pulses: Mapping[int, Pulse]) -> Slowdowns:
    """Return the slowdowns of a run, and the pauses in its most recent steps."""
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
    return with_pauses(lasting(sorted([*unseen, *found], key=lambda one: one.first_step), pulses), steps)


def with_pauses(slowdowns: tuple[StepSlowdown, ...], steps: JobSteps | None) -> Slowdowns:
    """Return the slowdowns, together with the pauses and uneven work in the most recent steps."""
    if steps is None:
        return Slowdowns(slowdowns)
    return Slowdowns(slowdowns, pauses_in(steps, slowdowns), uneven_work(steps))


def _overlap(one: StepSlowdown, other: StepSlowdown) -> bool:
    first, second = sorted((one, other), key=lambda slowdown: slowdown.first_step)
    return first.last_step is None or first.last_step >= second.first_step


def slowdowns_of_summaries(pulses: Mapping[int, Pulse]) -> list[StepSlowdown]:
    """Return the slowdowns that last for at least three summaries."""
    ranks = _common({rank: pulse.summaries for rank, pulse in pulses.items()})
    if not ranks:
        return []
    one = next(iter(ranks.values()))
    detector = LevelShifts(OF_SUMMARIES)
    length_ns = np.median([summaries.median_ns for summaries in ranks.values()], axis=0).astype(np.int64)
    detector.feed(one.first_step, length_ns, one.num_flagged < one.num_steps)
    return [_slowdown(shift, detector, ranks, pulses) for shift in detector.shifts if shift.was_slow]


def _common(ranks: Mapping[int, PulseSummaries]) -> dict[int, PulseSummaries]:
    """Return the summaries that cover the same steps on all ranks, sorted by step.

    Ranks may have merged their summaries at different times. In a damaged file, summaries may be in the wrong order.
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
