"""Rules about the ranks' copies of a model, which DDP should keep equal."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.finding import Finding, Observed
from ddpprof.measures.ranks.replicas import Drift, TrainedApart
from ddpprof.words import CONSTRUCT_AGAIN, listed, not_averaged, trained_apart


def copies_differ(o: Observed) -> Iterator[Finding]:
    """Report parameters that are not the same on all ranks."""
    if o.group_size != o.world_size:
        return
    for drift in o.drifts:
        module = o.module(drift.module)
        if module is None or "localsgd" in (module.comm_hook or "").lower():
            continue  # such a hook lets them diverge, and an averager brings them together now and then
        yield Finding(
            "copies-differ",
            "The ranks train different models: their copies of the parameters "
            + ("differ" if drift.differed_before else "move apart"),
            f"{_evidence(drift)}, as sampled values of {module.name} on {_ranks(drift)} show",
            _advice(drift),
            None,
            is_correctness=True,
        )


def unfrozen_parameters(o: Observed) -> Iterator[Finding]:
    """Report parameters that DDP does not average, because they were frozen when it was constructed."""
    if not o.unfrozen or (o.group_size or o.world_size or 1) < 2:
        return
    yield Finding(
        "unfrozen-parameters",
        not_averaged(o.unfrozen),
        trained_apart(o.unfrozen),
        f"{CONSTRUCT_AGAIN} Or construct it while all of them need gradients, and freeze "
        "some afterwards, with find_unused_parameters=True.",
        None,
        is_correctness=True,
    )


def unaveraged_parameters(o: Observed) -> Iterator[Finding]:
    """Report parameters that each rank trains for itself, since the script does not call the DDP module with them."""
    for apart in _trained_apart(o, is_wrapped=True):
        yield Finding(
            "unaveraged-parameters",
            f"The ranks train different models: DDP does not average the gradients of {_parameters(apart)}",
            f"the script never calls the DDP module that has them, and {_evidence(apart.drift)}, as sampled values on "
            f"{_ranks(apart.drift)} show",
            _CALL_DDP,
            None,
            is_correctness=True,
        )


def unwrapped_parameters(o: Observed) -> Iterator[Finding]:
    """Report parameters that began equal on all ranks, are trained apart, and belong to no DDP module."""
    for apart in _trained_apart(o, is_wrapped=False):
        yield Finding(
            "unwrapped-parameters",
            f"Each rank trains its own copy of {_parameters(apart)}",
            f"no DDP module has them; they were equal on {_ranks(apart.drift)} before the first step, and "
            f"{_evidence(apart.drift)}, as sampled values show",
            _WRAP_THEM,
            None,
            is_correctness=True,
            may_be_meant=True,
        )


def _trained_apart(o: Observed, *, is_wrapped: bool) -> list[TrainedApart]:
    if o.group_size != o.world_size:
        return []
    return [one for one in o.trained_apart if one.is_wrapped is is_wrapped]


def _parameters(apart: TrainedApart) -> str:
    count = "1 parameter" if len(apart.names) == 1 else f"{len(apart.names)} parameters"
    of_module = f" of {apart.module}" if apart.module else " outside all modules"
    return f"{count}{of_module}: {listed(apart.names, _MOST_NAMES)}"


_CALL_DDP = (
    "Compute the loss from the output of the DDP module itself: call model(…), not model.module(…) or a method of "
    "model.module. DDP averages gradients only after its own forward. To reach another method, call it in forward()."
)
_WRAP_THEM = (
    "If all ranks should have the same values, make these parameters part of the module that DistributedDataParallel "
    "wraps, or wrap their own module. If every rank is meant to train its own, leave them as they are."
)
_MOST_NAMES = 4


def _evidence(drift: Drift) -> str:
    if drift.differed_before:
        return "they already differed when the recording began"
    steps = "one step" if drift.num_steps == 1 else f"{drift.num_steps} steps"
    return f"in {steps} they moved apart by {drift.apart:.0%} of the distance they moved"


def _ranks(drift: Drift) -> str:
    return "both ranks" if len(drift.ranks) == 2 else f"{len(drift.ranks)} ranks"


def _advice(drift: Drift) -> str:
    if drift.num_unreduced_passes:
        return (
            "Call backward() once for each forward, on the sum of the losses: DDP reduces gradients in the first "
            "backward pass after a forward, and what a second pass adds stays on its rank. "
            f"This happened {_times(drift.num_unreduced_passes)} in the recorded steps."
        )
    if drift.differed_before:
        return (
            "DDP makes the copies equal when it wraps the model. Load checkpoints and initialise parameters before "
            "that, or do it the same way on every rank."
        )
    return (
        "Look for anything that changes parameters or gradients on each rank separately: changes to gradients after "
        "backward(), optimizers with different settings or random numbers, or parameters that were replaced after DDP "
        "wrapped the model."
    )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
