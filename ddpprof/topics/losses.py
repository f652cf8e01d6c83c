"""Detect losses that are NaN or infinite.

DDP averages gradients, so a NaN on one rank reaches the parameters and losses of all ranks one step later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.topic import Topic, View
from ddpprof.model.whole_run import NonfiniteSteps

_MOST_NAMED = 4

Nonfinite = Mapping[int, NonfiniteSteps | None]
"""rank → its steps with a NaN or infinite loss (``None``: no such step), for all ranks that recorded the whole run"""


def nonfinite_loss(ranks: Nonfinite, _view: View) -> Iterator[Finding]:
    """Report a NaN or infinite loss, and the ranks on which it appeared first."""
    finding = nonfinite_finding(ranks)
    if finding is not None:
        yield finding


def nonfinite_finding(
    ranks: Mapping[int, NonfiniteSteps | None],
    *,
    is_over: bool = True,
    learning_rates: Mapping[int, float | None] | None = None,
) -> Finding | None:
    """Return the finding about NaN or infinite losses; ``None`` if there were none.

    `ranks`: the steps with such a loss, by rank. `is_over`: whether the run has ended. `learning_rates`: by rank, the
    learning rate reported just after its first such step.
    """
    found = {rank: one for rank, one in ranks.items() if one is not None}
    if not found:
        return None
    step = min(one.first_step for one in found.values())
    first = sorted(rank for rank, one in found.items() if one.first_step == step)
    num_steps = max(one.num_steps for one in found.values())
    steps = "one step" if num_steps == 1 else f"{num_steps:,} steps"
    is_known = all(found[rank].follows_finite for rank in first)
    if not is_known or len(first) == len(ranks):
        where, advice = "", _OF_ALL
    else:
        batches, them = ("batch", "it") if len(first) == 1 else ("batches", "them")
        advice = _OF_SOME.format(batches=batches, ranks=_named(first), step=f"{step:,}", them=them)
        advice = _advice_on_rates(learning_rates or {}, first) or advice
        where = f" on {_named(first)}"
    return Finding(
        "nonfinite-loss",
        f"The loss {f'was NaN or infinite in {steps}' if is_over else 'has been NaN or infinite'}, first in step "
        f"{step:,}{where}",
        _evidence(ranks, first, step) if is_known else _NOT_KNOWN,
        advice,
        None,
        is_correctness=True,
        comes_first=True,
        numbers=only_known(first_step=step, num_steps=num_steps),
    )


_NOT_KNOWN = "earlier steps were not checked, so an earlier loss may have been NaN or infinite"
_OF_ALL = (
    "Check the loss function in that step for a division by zero or the logarithm of zero. If the parameters had "
    "diverged before, lower the learning rate, or clip gradients with clip_grad_norm_. "
    "torch.autograd.set_detect_anomaly(True) shows the operation that produces a NaN, but slows down every step."
)
_OF_SOME = (
    "Check the {batches} of {ranks} in step {step}, and what the loss computes from {them}: a division by zero, the "
    "logarithm of zero, or an empty batch. DDP averages gradients, so the NaN spreads to all ranks."
)
_OF_RATES = (
    "Give every rank the same learning rate: it was {mine:.3g} on rank {rank} and {other:.3g} elsewhere. DDP "
    "averages gradients, but each rank's own optimizer updates the parameters, so the parameters of the ranks drifted "
    "apart."
)
_OTHER_RATE = 1.5
"""learning rates count as different if one is at least this many times the other; smaller differences occur because
ranks report them a few steps apart, and schedules change them
"""


def _advice_on_rates(rates: Mapping[int, float | None], first: list[int]) -> str | None:
    """Return advice if the NaN began on a rank whose learning rate differs from that of all other ranks."""
    others = [rate for rank, rate in rates.items() if rank not in first and rate]
    for rank in first:
        mine = rates.get(rank)
        if mine and others and all(max(mine, one) > _OTHER_RATE * min(mine, one) for one in others):
            return _OF_RATES.format(mine=mine, rank=rank, other=others[0])
    return None


def _evidence(ranks: Mapping[int, NonfiniteSteps | None], first: list[int], step: int) -> str:
    if len(first) == len(ranks):
        return "it appeared on all ranks in the same step" if len(ranks) > 1 else "the loss before that was finite"
    others = [one.first_step if one is not None else None for rank, one in ranks.items() if rank not in first]
    the_others = "the other rank" if len(others) == 1 else "the other ranks"
    if all(other == step + 1 for other in others):
        return f"{the_others} followed in step {step + 1:,}, after DDP had averaged the gradients"
    later = sorted(other for other in others if other is not None)
    if not later:
        return f"the losses of {the_others} stayed finite"
    who = the_others if len(others) == 1 else f"{len(later)} of the {len(others)} other ranks"
    return f"{who} followed, from step {later[0]:,} on"


def _named(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = len(ranks) - _MOST_NAMED
    shown = [str(rank) for rank in ranks[:_MOST_NAMED]]
    if more > 0:
        return f"ranks {', '.join(shown)} and {more} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _of_run(view: View) -> Nonfinite | None:
    return None if view.whole_run is None else {one.rank: one.nonfinite for one in view.whole_run.ranks}


LOSSES: Topic[None, Nonfinite] = Topic("losses", rules=(nonfinite_loss,), of_run=_of_run)
