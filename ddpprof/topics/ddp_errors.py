"""Which parameters are DDP's own errors about, and what has to change?

The reducer raises three errors about parameters. Its texts list causes that may apply; which one does is known from the
settings of the module and from where the error was raised.
"""

from __future__ import annotations

from ddpprof.topics.failure import RankEnd
from ddpprof.words import listed

_MOST_NAMED = 8


def advice_on_ddp_error(end: RankEnd) -> str | None:
    """Return the parameters that the error names, and what to change; ``None`` if it names none."""
    said = end.error or ""
    if not end.parameters:
        return None
    if "our training graph has changed" in said:
        named = _named(end, "took no part in the loss this time, but did in the first step")
        return f"{named}: static_graph=True does not allow this. Pass find_unused_parameters=True instead."
    if "Expected to have finished reduction" in said:
        named = _named(end, "took no part in the loss of the step before")
        them = "it" if len(end.parameters) == 1 else "them"
        return (
            f"{named}: use {them} in every forward. Or remove {them}, freeze {them} before wrapping "
            "(parameter.requires_grad_(False)), or pass find_unused_parameters=True to DistributedDataParallel."
        )
    if "Expected to mark a variable ready only once" in said:
        return f"{_named(end, 'got a gradient twice in one backward pass')}{_cause_of_second_gradient(end)}"
    return None


def _named(end: RankEnd, what: str) -> str:
    number = len(end.parameters)
    who = "1 parameter" if number == 1 else f"{number} parameters"
    return f"{who} ({listed(end.parameters, _MOST_NAMED)}) {what}"


def _cause_of_second_gradient(end: RankEnd) -> str:
    if end.in_checkpoint:
        return (
            ", since checkpoint(…, use_reentrant=True) runs a backward pass of its own. Pass use_reentrant=False to "
            "torch.utils.checkpoint.checkpoint."
        )
    if end.searches:
        return (
            ". With find_unused_parameters=True, DDP takes a parameter for unused if the result of forward() does not "
            "depend on it: do not use it outside of the wrapped module's forward(), such as in the loss, or leave "
            "find_unused_parameters=True out."
        )
    return (
        ". Use every parameter within one forward() and one backward() per step: call backward() on the sum of the "
        "losses. Or pass static_graph=True if every step uses the same parameters in the same way."
    )
