"""Is a variant so far behind another that more rounds are not worth their steps?

    losing   the 95 % interval of the shift between their steps, over the rounds of both, is beyond a margin
    margin   2 % of the other's step, or the difference between starts of the same job, if that is more

The steps of one start do not show how starts differ: a slow minute of the machine would look like a slow variant. So
nothing is losing before both have been started twice. A variant closer than 2 % is as good. Without an interval, as on
an accelerator, where a start gives one time, the margin is at least 10 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from ddpprof.model import Record, StepMode
from ddpprof.statistics.shift import shift_between

_MARGIN = 0.02
_MARGIN_WITHOUT_INTERVAL = 0.1
_LEAST_STARTS = 2


def is_losing(rounds: Sequence[Steps], others: Sequence[Steps], spread: float) -> bool:
    """Return whether the variant is losing, given steps by round; a round that was not run is empty."""
    both = [(own, other) for own, other in zip(rounds, others, strict=False) if own and other]
    if len(both) < _LEAST_STARTS:
        return False
    own_ns, other_ns = ([ns for pair in both for ns in pair[side]] for side in (0, 1))
    shift = shift_between(other_ns, own_ns)
    if shift is None:
        return False
    least, surely = (_MARGIN_WITHOUT_INTERVAL, shift.shift) if shift.low is None else (_MARGIN, shift.low)
    return surely > max(least, spread) * median(other_ns)


def start_spread(starts: Sequence[Steps]) -> float:
    """Return the slowest start of one job over the fastest, minus 1."""
    medians = [median(steps) for steps in starts if steps]
    return max(medians) / min(medians) - 1 if medians else 0.0


Steps = tuple[float, ...]
"""ns, in order"""


def timed_blocks(ranks: Sequence[Record], mode: StepMode = StepMode.OFF) -> tuple[Steps, ...]:
    """Return runs of consecutive steps that every rank has; each step is the mean over the ranks.

    With DDP the ranks keep pace. Without it they run independently, so waiting for the slowest counts as DDP's cost.
    On an accelerator, which the host runs ahead of, only a block's ends are known: it is one step of mean length.
    """
    of_ranks = [
        {step.number: step.end_ns - step.start_ns for step in rank.steps if step.mode is mode} for rank in ranks
    ]
    common = set.intersection(*map(set, of_ranks)) if of_ranks else set()
    blocks: list[list[float]] = []
    for number in sorted(common):
        if number - 1 not in common:
            blocks.append([])
        blocks[-1].append(fmean(steps[number] for steps in of_ranks))
    if any(rank.device != "cpu" for rank in ranks):
        return tuple((fmean(block),) for block in blocks)
    return tuple(map(tuple, blocks))


def timed_steps(ranks: Sequence[Record]) -> Steps:
    """Return the steps of all blocks."""
    return tuple(step for block in timed_blocks(ranks) for step in block)
