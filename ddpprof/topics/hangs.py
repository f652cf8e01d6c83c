"""Detect risks of a hang: a rank that skips a backward pass, unequal numbers of batches, long timeouts.

A rank skips a backward pass if it catches an error in one batch, or skips a NaN loss. DDP pairs backward passes by
their order, so from then on it averages gradients of different iterations. A skipped pass is reported only if the rank
has finished with fewer backward passes than another rank. A forward pass without a backward pass is not enough, because
a script may compute a loss to log it, or repeat a forward pass that failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.frameworks import or_join, timeout_argument
from ddpprof.engine.topic import Topic, View
from ddpprof.model import CollectiveOfSomeRanks
from ddpprof.topics.accumulation import ACCUMULATION
from ddpprof.topics.data import DATA


class Passes(NamedTuple):
    """Numbers of forward and backward passes of one rank through its DDP modules."""

    num_backward: int
    """number of backward passes with gradient synchronization that the rank has begun"""
    has_finished: bool
    """True if training ended without an error on the rank"""
    num_unpaired: int = 0
    """number of forward passes that should have been followed by a backward pass but were not; if the script leaves out
    backward passes in every step, those do not count
    """
    first_unpaired_step: int | None = None
    """number of the first step with a forward pass counted in `num_unpaired`"""


class SkippedPass(NamedTuple):
    rank: int
    step: int
    """number of the first step in which the rank skipped a backward pass"""
    num_passes: int


def find_skipped_pass(ranks: Mapping[int, Passes]) -> SkippedPass | None:
    """Return the rank with the most skipped passes; ``None`` if no rank finished with fewer passes than another."""
    found = [
        SkippedPass(rank, one.first_unpaired_step, one.num_unpaired)
        for rank, one in ranks.items()
        if one.has_finished
        and one.first_unpaired_step is not None
        and any(
            other.num_backward > one.num_backward and other.num_unpaired < one.num_unpaired for other in ranks.values()
        )
    ]
    return max(found, key=lambda one: one.num_passes, default=None)


def unequal_passes(ranks: Mapping[int, Passes]) -> Finding | None:
    """Report ranks that all ended without an error, but after different numbers of backward passes.

    Ranks of one group can do so only within ``join()``, or if the script catches an error, as when a peer has left.
    """
    if len(ranks) < 2 or not all(one.has_finished for one in ranks.values()):
        return None
    fewest, most = (choose(ranks, key=lambda rank: ranks[rank].num_backward) for choose in (min, max))
    left_out = ranks[most].num_backward - ranks[fewest].num_backward
    if not left_out:
        return None
    return Finding(
        "unequal-passes",
        f"Training ended without an error, but rank {fewest} ran {left_out:,} backward pass"
        f"{'' if left_out == 1 else 'es'} fewer than rank {most}",
        f"rank {fewest} began {ranks[fewest].num_backward:,} backward passes, and rank {most} began "
        f"{ranks[most].num_backward:,}",
        "Check whether the script catches an exception on one of these ranks and then ends normally, for example after "
        "a damaged sample or a lost connection. Its log and the exception's message show the cause.",
        None,
        is_correctness=True,
        comes_first=True,
        numbers=only_known(num_passes=left_out),
    )


_LONG_S = 2 * 3600.0
"""timeouts of at least this length are reported; PyTorch's defaults are 10 minutes for NCCL and 30 minutes for other
backends
"""


@dataclass(frozen=True, slots=True)
class HangRisks:
    """Conditions that may make the job hang."""

    passes: Mapping[int, Passes] = field(default_factory=dict)
    skipped: SkippedPass | None = None
    """the rank that skipped a backward pass, if there is one"""
    of_some_ranks: tuple[CollectiveOfSomeRanks, ...] = ()
    timeout_s: float | None = None
    """timeout of collectives on the rank with the longest timeout"""


def _of_run(view: View) -> HangRisks:
    records, watched = view.records.values(), view.whole_run.ranks if view.whole_run is not None else ()
    passes = {
        one.rank: Passes(one.num_passes, one.ended == "finished", one.num_unpaired, one.unpaired_step)
        for one in watched
    }
    return HangRisks(
        passes=passes,
        skipped=find_skipped_pass(passes),
        of_some_ranks=next((one.of_some_ranks for one in records), ()),
        timeout_s=max((one.timeout_s for one in records if one.timeout_s), default=None),
    )


def unequal_batches(_risks: HangRisks, view: View) -> Iterator[Finding]:
    """Report ranks that get different numbers of batches per pass over the data.

    If gradients accumulate, the number of steps depends on whether the script takes a step with leftover batches.
    """
    if view.joins or (view.world_size or 1) < 2 or not view.is_one_group:
        return
    data, lengths = view[DATA], dict[int, list[int]]()
    for rank, loaders in data.loaders.items() if data is not None else ():
        feeding = [one for one in loaders if one.feeds_training]
        if len(feeding) != 1 or feeding[0].batches_per_pass is None:
            return  # it is not known which loaders of different ranks belong together
        lengths.setdefault(feeding[0].batches_per_pass, []).append(rank)
    per_step = 1 if view[ACCUMULATION] else view.num_micro_steps  # ranks synchronize in every pass that reduces
    differs_if_left = len({number // per_step for number in lengths}) > 1
    differs_if_used = len({ceil(number / per_step) for number in lengths}) > 1
    if not (differs_if_left or differs_if_used):
        return
    rest = ""
    if not (differs_if_left and differs_if_used):
        rest = (
            f". Gradients accumulate over {per_step} batches, so the number of steps depends on whether the script "
            f"takes a step with the leftover batches at the end"
        )
    fewest, most = min(lengths), max(lengths)
    yield Finding(
        "unequal-batches",
        "The ranks have different numbers of batches: they will end up in different epochs, and the job may hang",
        f"rank {lengths[fewest][0]} gets {fewest:,} batches in a pass over its DataLoader, and rank "
        f"{lengths[most][0]} gets {most:,}{rest}; ranks with more batches wait forever at the next point that all "
        "ranks must reach, such as an evaluation or the end of training",
        "Give every rank the same number of batches: let a DistributedSampler shard the dataset, or end each epoch "
        f"after the smallest len(loader) of all ranks{or_join(view.framework)}.",
        None,
        is_correctness=True,
        numbers=only_known(fewest_batches=fewest, most_batches=most),
    )


def skipped_backward(risks: HangRisks, view: View) -> Iterator[Finding]:
    """Report a rank that skipped a backward pass that the other ranks ran."""
    if risks.skipped is None or view.joins or not view.is_one_group:
        return
    rank, step, number = risks.skipped
    some = f"the backward pass of step {step:,}"
    if number > 1:
        some = f"{number:,} backward passes, first in step {step:,}"
    yield Finding(
        "skipped-backward",
        f"Rank {rank} skipped {some}: since then, DDP has averaged gradients from different iterations",
        f"rank {rank} ran no backward pass after its forward pass in step {step:,}, for example because the script "
        "catches an error or skips a NaN loss; at the end of training, the other ranks wait for the missing backward "
        "pass",
        SKIP_TOGETHER,
        None,
        is_correctness=True,
        comes_first=True,
        numbers=only_known(first_step=step, num_passes=number),
    )


CRASH_AT_EXIT = (
    "C code crashed while Python was exiting. With gloo, torch aborts a process in this way if the script ends "
    "within milliseconds of its last backward pass (pytorch/pytorch#179291): add time.sleep(1) at its end."
)
"""sentence that explains why a rank crashed after the end of its script, and says what to do"""
SAME_COLLECTIVES = (
    "Every rank must call the same collectives in the same order, with the same amount of data: look for conditions "
    "around them that depend on the rank or its batch, and for sizes that depend on the batch, such as a smaller last "
    "batch. If sizes must differ, pad the tensors, or gather them with all_gather_object."
)
ZERO_LOSS = "backward() on a loss of zero, such as 0 * output.sum()"
SKIP_TOGETHER = f"Skip a batch on all ranks together: all-reduce a flag before backward(), or call {ZERO_LOSS}."


def ended_unequally(risks: HangRisks, view: View) -> Iterator[Finding]:
    """Report ranks that ended after different numbers of backward passes, unless the cause is known."""
    found = unequal_passes(risks.passes)
    is_meant = view.joins or not view.is_one_group or not view.ended_well
    if found is not None and risks.skipped is None and not is_meant:
        yield found


def collective_of_some_ranks(risks: HangRisks, view: View) -> Iterator[Finding]:
    """Report a collective that the script calls only on some ranks."""
    if (view.world_size or 1) < 2:
        return
    for call in risks.of_some_ranks:
        yield Finding(
            "collective-of-some-ranks",
            f"Only some ranks call {call.name}: the job may hang there",
            f"the script calls it only at {call.place}, inside `if {call.condition}:`",
            "Every rank of the group must call this collective: move the call out of the `if` block, unless the other "
            "ranks call it elsewhere.",
            None,
            is_correctness=True,
        )


def long_timeout(risks: HangRisks, view: View) -> Iterator[Finding]:
    """Report a timeout so long that a hanging job would occupy its machines for hours."""
    if (view.world_size or 1) < 2 or risks.timeout_s is None or risks.timeout_s < _LONG_S:
        return
    yield Finding(
        "long-timeout",
        f"If this job hangs, it will hang for {risks.timeout_s / 3600:.3g} hours",
        f"the process group's timeout is {risks.timeout_s / 3600:.3g} h",
        f"Set a shorter timeout, slightly longer than your longest pause: {timeout_argument(view.framework)}; "
        "or let `ddpprof watch --kill-after 60` end a job that hangs.",
        None,
        numbers=only_known(timeout_s=risks.timeout_s),
    )


HANGS: Topic[None, HangRisks] = Topic(
    "hangs",
    rules=(skipped_backward, ended_unequally, unequal_batches, collective_of_some_ranks, long_timeout),
    of_run=_of_run,
)
