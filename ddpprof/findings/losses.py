"""A rule about losses that are NaN or infinite.

DDP averages gradients, so that one rank's NaN is in the parameters of all ranks, and in their losses, one step later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddpprof.findings.finding import Finding, Observed
from ddpprof.model.whole_run import NonfiniteSteps

_MOST_NAMED = 4


def nonfinite_loss(o: Observed) -> Iterator[Finding]:
    """Report a loss that was NaN or infinite, and the rank where it began."""
    finding = nonfinite_finding(o.nonfinite)
    if finding is not None:
        yield finding


def nonfinite_finding(ranks: Mapping[int, NonfiniteSteps | None]) -> Finding | None:
    """Return the finding on the steps with such a loss, of each rank; ``None`` if no rank has one."""
    found = {rank: one for rank, one in ranks.items() if one is not None}
    if not found:
        return None
    step = min(one.first_step for one in found.values())
    first = sorted(rank for rank, one in found.items() if one.first_step == step)
    num_steps = max(one.num_steps for one in found.values())
    steps = "one step" if num_steps == 1 else f"{num_steps:,} steps"
    is_on_all = len(first) == len(ranks)
    return Finding(
        "nonfinite-loss",
        f"The loss was NaN or infinite in {steps}, first in step {step:,}" + _on(first, len(ranks)),
        _evidence(found, first, len(ranks)),
        _OF_ALL if is_on_all else _OF_SOME.format(ranks=_named(first), step=f"{step:,}"),
        None,
        is_correctness=True,
    )


_OF_ALL = (
    "Look at what changed the parameters before it: lower the learning rate, or clip gradients with "
    "clip_grad_norm_. torch.autograd.set_detect_anomaly(True) names the operation in which a NaN appears, and makes "
    "steps slow."
)
_OF_SOME = (
    "Look at the batch of {ranks} in step {step}, and at what the loss does with it: a division by zero, the "
    "logarithm of zero, or an empty batch. DDP passes the NaN on to all ranks with the gradients."
)


def _on(first: list[int], num_ranks: int) -> str:
    return "" if len(first) == num_ranks else f" on {_named(first)}"


def _evidence(found: Mapping[int, NonfiniteSteps], first: list[int], num_ranks: int) -> str:
    if found[first[0]].is_first_noted:
        return "this is the first step that ddpprof watched, so it may have been so before"
    if len(first) == num_ranks:
        return "it came on all ranks in the same step" if num_ranks > 1 else "the steps before it were normal"
    later = [one.first_step for rank, one in found.items() if rank not in first]
    if not later:
        return "the other ranks' losses stayed finite"
    return f"the other ranks followed in step {min(later):,}, with gradients that DDP had averaged"


def _named(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = len(ranks) - _MOST_NAMED
    shown = [str(rank) for rank in ranks[:_MOST_NAMED]]
    if more > 0:
        return f"ranks {', '.join(shown)} and {more} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
