"""Rules about what will make the job hang one day, or hang for long."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ddpprof.findings.finding import Finding, Observed
from ddpprof.findings.framework_words import or_join, timeout_argument

_LONG_S = 2 * 3600.0
"""timeout after which a hang counts as long; torch's own are 10 minutes for NCCL and 30 for all others"""


def unequal_batches(o: Observed) -> Iterator[Finding]:
    """Report ranks that get different numbers of batches in a pass over the data, and so take different steps.

    If a step accumulates several batches, that depends on what the script does with those that are left at the end.
    """
    if o.joins or (o.world_size or 1) < 2 or o.group_size != o.world_size:
        return
    lengths: dict[int, list[int]] = {}
    for rank, loaders in o.loaders.items():
        feeding = [one for one in loaders if one.feeds_training]
        if len(feeding) != 1 or feeding[0].batches_per_pass is None:
            return  # which loaders belong together is not known
        lengths.setdefault(feeding[0].batches_per_pass, []).append(rank)
    per_step = 1 if o.accumulation else o.num_micro_steps  # ranks meet in every pass that reduces
    differs_if_left = len({number // per_step for number in lengths}) > 1
    differs_if_used = len({ceil(number / per_step) for number in lengths}) > 1
    if not (differs_if_left or differs_if_used):
        return
    rest = ""
    if not (differs_if_left and differs_if_used):
        rest = (
            f". A step accumulates {per_step} of them, so it depends on whether the script takes a step with those "
            "that are left at the end"
        )
    fewest, most = min(lengths), max(lengths)
    yield Finding(
        "unequal-batches",
        "The ranks have different numbers of batches: they drift into different epochs, and the job may hang",
        f"rank {lengths[fewest][0]} gets {fewest:,} batches in a pass over its DataLoader, and rank {lengths[most][0]} "
        f"gets {most:,}{rest}; at the next point that all ranks must reach, such as an evaluation or the end of "
        "the training, ranks with more batches wait for ever",
        "Give every rank the same number: let a DistributedSampler divide the dataset, or end each epoch at the "
        f"smallest len(loader) of all ranks{or_join(o.framework)}.",
        None,
        is_correctness=True,
    )


def skipped_backward(o: Observed) -> Iterator[Finding]:
    """Report a rank that skipped a backward pass which the others took part in."""
    if o.skipped is None or o.joins or o.group_size != o.world_size:
        return
    rank, step, number = o.skipped
    some = f"the backward pass of step {step:,}"
    if number > 1:
        some = f"{number:,} backward passes, first in step {step:,}"
    yield Finding(
        "skipped-backward",
        f"Rank {rank} skipped {some}: since then, gradients of different batches are averaged",
        f"no backward pass followed its forward in step {step:,}, as when the script catches an error or leaves out a "
        "loss that is NaN; in the end the other ranks wait for a pass that never comes",
        SKIP_TOGETHER,
        None,
        is_correctness=True,
    )


SAME_COLLECTIVES = (
    "Every rank must call the same collectives in the same order, with as much data: look for a condition on the rank "
    "or its batch around them, and for sizes that depend on the batch, such as a last, smaller one. Gather amounts "
    "that differ with all_gather_object, or pad them."
)
ZERO_LOSS = "backward() on a loss of zero, such as 0 * output.sum()"
SKIP_TOGETHER = (
    "Skip a batch on all ranks together: let them agree before backward(), by an all_reduce of a flag, or call "
    f"{ZERO_LOSS}."
)


def collective_of_some_ranks(o: Observed) -> Iterator[Finding]:
    """Report a collective that the script calls on some of the ranks only."""
    if (o.world_size or 1) < 2:
        return
    for call in o.of_some_ranks:
        yield Finding(
            "collective-of-some-ranks",
            f"Only some ranks call {call.name}: the job may hang there",
            f"the script calls it only at {call.place}, inside `if {call.condition}:`",
            "Move it out of the condition, unless the other ranks call it elsewhere: every rank of the group has to "
            "call it.",
            None,
            is_correctness=True,
        )


def long_timeout(o: Observed) -> Iterator[Finding]:
    """Report a timeout so long that a job that hangs would hold its machines for hours."""
    if (o.world_size or 1) < 2 or o.timeout_s is None or o.timeout_s < _LONG_S:
        return
    yield Finding(
        "long-timeout",
        f"A job that hangs would hang for {o.timeout_s / 3600:.3g} hours",
        f"the process group gives a collective up after {o.timeout_s / 3600:.3g} h",
        f"Set a shorter one, a little above your longest pause: {timeout_argument(o.framework)}; or let "
        "`ddpprof watch --kill-after 60` end a job that hangs.",
        None,
    )
