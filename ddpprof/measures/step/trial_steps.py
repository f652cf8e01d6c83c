"""How long are the steps of a trial? Those with recording off count, since they include nothing of ddpprof."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ddpprof.model import Record, StepMode

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
