"""Find stragglers: ranks that other ranks wait for, how late they are, in which part of the step, and since when.

    lateness of rank r in step s = own time of r - median own time of the other ranks          (`own_time`)

A rank is a straggler if its lateness is significant (p < 0.01) and more than 1 % of the step. There are two tests: a
binomial test of the number of steps in which the rank was last, with probability 1 / ranks, and Student's t-test of its
own time against the mean of the other ranks (with the median, noise with a long tail would appear as lateness). Both
are applied to all steps and, if the rank became late during the recording, to the steps since then. The reported
p-value is the smallest p-value of these tests times the number of tests.

Own times are durations on each rank's own clock, so clock offsets do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.numbers import DEVICE, HOST
from ddpprof.model import DdpModule, Int64Column, RecordedStep
from ddpprof.statistics.paired_ratio import binomial_tail, mean_above, mean_above_zero
from ddpprof.topics.buckets.steps import pass_fits
from ddpprof.topics.ranks.own_time import StepProgress

SIGNIFICANT = 0.01
LATE_SHARE_OF_STEP = 0.01
_FEWEST = 2
"""a test needs at least this many steps in total, and on each side of a change"""

_Floats = NDArray[np.float64]


class OwnTimePart(StrEnum):
    """A part of a rank's own time in a step."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class RankLateness:
    """Lateness of one rank over all steps."""

    rank: int
    num_last: int
    """number of steps in which the rank's own time was the longest"""
    late_ns: int
    """median lateness over all steps; negative if the rank waits for other ranks"""
    p_value: float
    """probability that a lateness this large occurs by chance, corrected for the number of ranks and tests; at
    most 1
    """


@dataclass(frozen=True, slots=True)
class Straggler:
    rank: int
    late_ns: int
    """median lateness over `num_steps`"""
    part: OwnTimePart | None
    """part of the step that causes at least half of the lateness; ``None`` if all parts are slower, for example on a
    slower or busier machine
    """
    part_late_ns: int
    """median lateness in the part of the step in which the lateness is largest"""
    num_last: int
    num_steps: int
    """number of steps since the rank became late; the total number of steps if it was late from the start"""
    since_step: int | None
    """number of the step since which the rank has been late; ``None`` if it was late from the first step"""
    p_value: float


@dataclass(frozen=True, slots=True)
class Stragglers:
    num_steps: int
    step_ns: Annotated[int, HOST]
    """median duration of a step"""
    ranks: Annotated[tuple[RankLateness, ...], DEVICE]
    stragglers: Annotated[tuple[Straggler, ...], DEVICE]
    """stragglers in descending order of lateness"""


def find_stragglers(progress: Mapping[int, Sequence[StepProgress]]) -> Stragglers | None:
    """Find stragglers. `progress`: steps by rank. Returns ``None`` for fewer than two ranks or common steps."""
    table = _CommonSteps(progress)
    if len(table.ranks) < 2 or len(table.steps) < _FEWEST:
        return None
    step_ns = float(np.median(table.step_ns))
    judged = [_judge(table, row) for row in range(len(table.ranks))]
    late = [
        one
        for row, verdict in enumerate(judged)
        if verdict.p_value < SIGNIFICANT
        and (one := _straggler(table, row, verdict)).late_ns > LATE_SHARE_OF_STEP * step_ns
    ]
    return Stragglers(
        num_steps=len(table.steps),
        step_ns=round(step_ns),
        ranks=tuple(
            RankLateness(rank, int(table.is_last[row].sum()), _median(table.lateness(table.own, row)), verdict.p_value)
            for row, (rank, verdict) in enumerate(zip(table.ranks, judged, strict=True))
        ),
        stragglers=tuple(sorted(late, key=lambda one: -one.late_ns)),
    )


class _CommonSteps:
    """Steps that all ranks have, measured from the same source. Arrays are [num_ranks, num_steps], in ns."""

    def __init__(self, progress: Mapping[int, Sequence[StepProgress]]) -> None:
        by_step = {
            rank: {(row.step, row.is_traced): row for row in rows} for rank, rows in sorted(progress.items()) if rows
        }
        self.ranks = tuple(by_step)
        common = set.intersection(*(set(rows) for rows in by_step.values())) if by_step else set()
        self.steps = tuple(sorted(common))
        rows = [[of_rank[step] for step in self.steps] for of_rank in by_step.values()]

        def column(name: str) -> Int64Column:
            values = [[getattr(row, name) for row in of_rank] for of_rank in rows]
            return np.array(values, np.int64).reshape(len(self.ranks), len(self.steps))

        self.step_ns, self.own = column("step_ns"), column("own_ns")
        self.parts = {part: column(f"{part}_ns") for part in OwnTimePart}
        ordered = np.sort(self.own, axis=0)
        longest, next_to_it = (ordered[-1], ordered[-2]) if len(rows) > 1 else (ordered, ordered)
        self.is_last = (self.own == longest) & (longest > next_to_it)

    def lateness(self, values: Int64Column, row: int) -> _Floats:
        """Return, for each step, by how much the value of one rank exceeds the median of the other ranks."""
        late: _Floats = values[row] - np.median(np.delete(values, row, axis=0), axis=0)
        return late

    def above_mean(self, row: int) -> _Floats:
        others = np.delete(self.own, row, axis=0).astype(np.float64)
        above: _Floats = self.own[row] - others.mean(axis=0)
        return above


@dataclass(frozen=True, slots=True)
class _Verdict:
    p_value: float
    since: int
    """index of the first late step; 0 if the rank was late from the start"""


def _judge(table: _CommonSteps, row: int) -> _Verdict:
    num_tests = 4 * len(table.ranks)  # two for all steps, and two for those since a change
    since = _change(table.lateness(table.own, row))
    whole = _p_value(table, row, 0) * num_tests
    if since is None:
        return _Verdict(min(1.0, whole), 0)
    num_choices = len(table.steps) - 2 * _FEWEST + 1
    after = _p_value(table, row, since) * num_tests * num_choices
    return _Verdict(min(1.0, whole, after), since)


def _p_value(table: _CommonSteps, row: int, since: int) -> float:
    is_last, above = table.is_last[row, since:], table.above_mean(row)[since:]
    last = binomial_tail(int(is_last.sum()), len(is_last), 1 / len(table.ranks))
    return min(last, mean_above_zero(above.tolist()))


def _change(lateness: _Floats) -> int | None:
    """Return the index at which the rank became late: the best split into two means (least squares).

    Returns ``None`` unless the second mean is significantly larger and more than twice the first.
    """
    splits = np.arange(_FEWEST, len(lateness) - _FEWEST + 1)
    if not len(splits):
        return None
    sums = np.cumsum(lateness)
    explained = sums[splits - 1] ** 2 / splits + (sums[-1] - sums[splits - 1]) ** 2 / (len(lateness) - splits)
    best = int(splits[np.argmax(explained)])
    before, after = lateness[:best], lateness[best:]
    is_sure = mean_above(after.tolist(), before.tolist()) * len(splits) < SIGNIFICANT
    return best if is_sure and after.mean() > 2 * before.mean() else None


def _straggler(table: _CommonSteps, row: int, verdict: _Verdict) -> Straggler:
    steps = slice(verdict.since, None)
    by_part = {part: _median(table.lateness(values, row)[steps]) for part, values in table.parts.items()}
    part = max(by_part, key=lambda name: by_part[name])
    is_last = table.is_last[row, steps]
    late_ns = _median(table.lateness(table.own, row)[steps])
    return Straggler(
        rank=table.ranks[row],
        late_ns=late_ns,
        part=part if 2 * by_part[part] >= late_ns else None,
        part_late_ns=by_part[part],
        num_last=int(is_last.sum()),
        num_steps=len(is_last),
        since_step=table.steps[verdict.since][0] if verdict.since else None,
        p_value=verdict.p_value,
    )


def _median(values: _Floats) -> int:
    return round(float(np.median(values)))


SHARE_WORTH_NAMING = 0.1
"""a gradient is reported if it causes at least this share of the rank's total delay"""


@dataclass(frozen=True, slots=True)
class LateGradient:
    module: int
    parameter: str
    previous_parameter: str | None
    """parameter whose gradient becomes ready just before that of `parameter`; ``None`` if that is the first gradient,
    whose delay is relative to the end of the forward pass
    """
    jump_ns: int
    excess_ns: int
    num_steps: int


def find_late_gradients(
    modules: Sequence[DdpModule], ranks: Mapping[int, Sequence[RecordedStep]], slow_rank: int
) -> tuple[LateGradient, ...] | None:
    """Return the gradients at which a rank falls behind in its backward pass, largest delay first.

    Returns ``None`` if no other rank has the same steps.
    """
    delays = {rank: _delays(modules, steps) for rank, steps in ranks.items()}
    mine = delays.pop(slow_rank, {})
    found: list[LateGradient] = []
    compared = False
    for module in sorted({module for module, _ in mine}):
        steps = [step for of, step in mine if of == module and any((of, step) in other for other in delays.values())]
        if steps:
            others = [[other[module, step] for other in delays.values() if (module, step) in other] for step in steps]
            usual = np.array([np.median(of_step, axis=0) for of_step in others])
            found += _jumps(modules[module], module, np.array([mine[module, step] for step in steps]), usual)
            compared = True
    return tuple(sorted(found, key=lambda one: -one.jump_ns)) if compared else None


def _delays(modules: Sequence[DdpModule], steps: Sequence[RecordedStep]) -> dict[tuple[int, tuple[int, int]], _Floats]:
    """Return the delay of each parameter's gradient; NaN for missing gradients.

    Keys are the module, and then (step, position of the backward pass in the step).
    """
    found = {}
    for step in steps:
        for place, one in enumerate(step.passes):
            if pass_fits(modules, one):
                since = [np.nan if time is None else time - one.origin_ns for time in one.ready_ns]
                found[one.module, (step.number, place)] = np.array(since, np.float64)
    return found


def _jumps(ddp: DdpModule, module: int, mine: _Floats, usual: _Floats) -> list[LateGradient]:
    """Return the gradients with the largest delays. `mine` and `usual`: arrays [num_steps, num_parameters]."""
    seen = np.flatnonzero(~np.isnan(mine - usual).all(axis=0))
    order = seen[np.argsort(np.nanmedian(usual[:, seen], axis=0), kind="stable")]
    excess = np.nanmedian((mine - usual)[:, order], axis=0)
    jumps = np.diff(excess, prepend=0.0)
    counts = np.count_nonzero(~np.isnan((mine - usual)[:, order]), axis=0)
    worth_naming = SHARE_WORTH_NAMING * jumps[jumps > 0].sum()
    names = [ddp.parameters[index].name for index in order.tolist()]
    return [
        LateGradient(
            module=module,
            parameter=names[place],
            previous_parameter=names[place - 1] if place else None,
            jump_ns=round(float(jumps[place])),
            excess_ns=round(float(excess[place])),
            num_steps=int(counts[place]),
        )
        for place in np.flatnonzero((jumps > 0) & (jumps >= worth_naming)).tolist()
    ]
