"""Detect ranks whose copies of the model differ, and ranks that write the same checkpoint.

Copies are compared before and after the recorded steps.

    move       = values after the recorded steps - values before them
    apart      = largest distance of a rank's move from the first rank's move, divided by the length of the longest move

Distances are Euclidean. Differences as small as rounding errors do not count. Modules are excluded if the script keeps
gradients local in some optimizer steps, for example because it averages parameters instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.topic import Topic, View
from ddpprof.model import RecordedStep, Replica, UnaveragedParameters
from ddpprof.words import CONSTRUCT_AGAIN, listed, not_averaged, ranks_in_words, trained_apart

_APART = 0.05
_DIFFERENT = 1e-3
"""copies count as different if they differ by more than this fraction of the norm of the values"""
_RESOLUTIONS = 20
"""a difference of more than this many times the floating-point resolution is not a rounding error"""


@dataclass(frozen=True, slots=True)
class Drift:
    """A module with different copies on the ranks."""

    module: int
    ranks: tuple[int, ...]
    """ranks that were compared"""
    num_steps: int
    """number of steps between the two readings of the values"""
    apart: float
    """largest difference between the moves of two ranks' copies, as a fraction of the longest move"""
    differed_before: bool
    """True if the copies were already different when the recording began"""
    num_unreduced_passes: int
    """number of backward passes whose gradients DDP did not reduce; maximum over ranks"""


def is_always_reduced(module: int, steps: Sequence[RecordedStep]) -> bool:
    """Return whether each training step with an optimizer step has a synchronized backward pass of the module."""
    trained = [
        step
        for step in steps
        if step.optimizers and any(one.module == module and one.has_gradients for one in step.forwards)
    ]
    return bool(trained) and all(any(one.module == module for one in step.passes) for step in trained)


def find_drifts(replicas: Mapping[int, Sequence[Replica]]) -> tuple[Drift, ...]:
    """Compare the ranks' copies of each module.

    Exclude ranks whose copies were read at different steps than on the first rank.
    """
    drifts = []
    for module in sorted({one.module for of_rank in replicas.values() for one in of_rank}):
        copies = {rank: one for rank, of_rank in replicas.items() for one in of_rank if one.module == module}
        comparable = _comparable(copies)
        if len(comparable) > 1 and (drift := _drift(module, comparable)) is not None:
            drifts.append(drift)
    return tuple(drifts)


@dataclass(frozen=True, slots=True)
class TrainedApart:
    """Parameters that differ between ranks, and for which no DDP module averages gradients."""

    module: str
    names: tuple[str, ...]
    is_wrapped: bool
    """True if the parameters belong to a DDP module whose ``forward`` the script never calls"""
    drift: Drift


def find_trained_apart(unaveraged: Mapping[int, Sequence[UnaveragedParameters]]) -> tuple[TrainedApart, ...]:
    """Return the parameters that each rank trains separately and that differ between ranks.

    `unaveraged`: by rank, the parameters for which no DDP module averages gradients. Parameters outside DDP modules
    that differ from the beginning, or in their shapes, are assumed to be intended, such as experts or a sharded
    embedding.
    """
    found = []
    for drift in find_drifts({rank: [one.replica for one in of] for rank, of in unaveraged.items()}):
        same = [unaveraged[rank][drift.module] for rank in drift.ranks]
        is_meant = drift.differed_before and not same[0].is_wrapped
        if len({(one.names, one.shapes) for one in same}) == 1 and not is_meant:
            found.append(TrainedApart(same[0].module, same[0].names, same[0].is_wrapped, drift))
    return tuple(found)


def _comparable(copies: Mapping[int, Replica]) -> dict[int, Replica]:
    first = copies[min(copies)]
    return {
        rank: one
        for rank, one in sorted(copies.items())
        if one.steps == first.steps and len(one.before) == len(one.after) == len(first.before) > 0
    }


def _drift(module: int, copies: Mapping[int, Replica]) -> Drift | None:
    before, after = (np.array([getattr(one, name) for one in copies.values()]) for name in ("before", "after"))
    moves = after - before
    longest, length = _lengths(moves).max(), _lengths(before).max()
    apart, rounding = _lengths(moves - moves[0]).max(), max(one.resolution for one in copies.values()) * length
    differed = bool(_lengths(before - before[0]).max() > max(_DIFFERENT * length, _RESOLUTIONS * rounding))
    if not differed and (apart <= _APART * longest or apart <= _RESOLUTIONS * rounding):
        return None
    first, last = next(iter(copies.values())).steps
    passes = max(one.num_unreduced_passes for one in copies.values())
    share = float(apart / longest) if longest > 0 else 0.0
    return Drift(module, tuple(copies), last - first, share, differed, passes)


def _lengths(values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(np.linalg.norm(values, axis=1))


@dataclass(frozen=True, slots=True)
class DifferentRates:
    """Learning rates that differ between ranks."""

    step: int
    """first number of steps after which they are known to differ"""
    rates: Mapping[int, float]
    """rank → last known learning rate after a number of steps that is known on all ranks"""


def find_different_rates(known: Mapping[int, Mapping[int, float]]) -> DifferentRates | None:
    """Return the ranks' learning rates if they differ. `known`: by rank, number of steps → learning rate."""
    common = sorted(set.intersection(*(set(rates) for rates in known.values()))) if len(known) > 1 else []
    differ = [step for step in common if len({rates[step] for rates in known.values()}) > 1]
    return DifferentRates(differ[0], {rank: rates[differ[-1]] for rank, rates in known.items()}) if differ else None


@dataclass(frozen=True, slots=True)
class Replicas:
    """Reasons why the ranks' copies of the parameters differ."""

    drifts: tuple[Drift, ...] = ()
    trained_apart: tuple[TrainedApart, ...] = ()
    unfrozen: tuple[str, ...] = ()
    """parameters that are trained although DDP does not average their gradients, because they were frozen when DDP was
    constructed
    """
    rates: DifferentRates | None = None


def _of_run(view: View) -> Replicas:
    records = view.records
    return Replicas(
        drifts=find_drifts({rank: one.replicas for rank, one in records.items()}),
        trained_apart=find_trained_apart({rank: one.unaveraged for rank, one in records.items()}),
        unfrozen=next((one.unfrozen for one in records.values() if one.unfrozen), ()),
        rates=find_different_rates({rank: dict(one.learning_rates) for rank, one in records.items()}),
    )


def copies_differ(replicas: Replicas, view: View) -> Iterator[Finding]:
    """Report parameters that are not the same on all ranks."""
    if not view.is_one_group:
        return
    for drift in replicas.drifts:
        module = view.module(drift.module)
        if module is None or "localsgd" in (module.comm_hook or "").lower():
            continue  # with such a hook copies diverge, and an averager synchronizes them periodically
        yield Finding(
            "copies-differ",
            "The ranks train different models: their copies of the parameters "
            + ("differ" if drift.differed_before else "diverge"),
            f"{_evidence(drift)}, according to sampled values of {module.name} on {_ranks(drift)}",
            _advice(drift),
            None,
            is_correctness=True,
            comes_first=True,
            numbers=only_known(apart_share=drift.apart, num_steps=drift.num_steps, num_ranks=len(drift.ranks)),
        )


def different_learning_rates(replicas: Replicas, view: View) -> Iterator[Finding]:
    """Report learning rates that are not the same on all ranks."""
    found = replicas.rates
    if found is None or not view.is_one_group:
        return
    low, high = (choose(found.rates, key=lambda rank: found.rates[rank]) for choose in (min, max))
    lowest, highest = found.rates[low], found.rates[high]
    yield Finding(
        "different-learning-rates",
        "The ranks train with different learning rates, so their copies of the model drift apart",
        f"the learning rates differ since step {found.step:,} or shortly before; the last known ones are "
        f"{lowest:.4g} on rank {low} and {highest:.4g} on rank {high}",
        "Call the scheduler's step() on every rank, after the same steps. If it depends on a metric, as "
        "ReduceLROnPlateau does, all-reduce the metric first, so that all ranks decide alike.",
        None,
        is_correctness=True,
        comes_first=True,
        numbers=only_known(first_step=found.step, rates_ratio=highest / lowest if lowest > 0 else None),
    )


def unfrozen_parameters(replicas: Replicas, view: View) -> Iterator[Finding]:
    """Report trained parameters that DDP does not average because they were frozen when DDP was constructed."""
    if not replicas.unfrozen or (view.group_size or view.world_size or 1) < 2:
        return
    yield Finding(
        "unfrozen-parameters",
        not_averaged(replicas.unfrozen),
        trained_apart(replicas.unfrozen),
        f"{CONSTRUCT_AGAIN} Or construct DDP with find_unused_parameters=True while all parameters require gradients, "
        "and freeze some of them afterwards.",
        None,
        is_correctness=True,
        comes_first=True,
        numbers=only_known(num_parameters=len(replicas.unfrozen)),
    )


def unaveraged_parameters(replicas: Replicas, view: View) -> Iterator[Finding]:
    """Report parameters that each rank trains separately because the script bypasses DDP's ``forward``."""
    for apart in _apart(replicas, view, is_wrapped=True):
        yield Finding(
            "unaveraged-parameters",
            f"The ranks train different models: DDP does not average the gradients of {_parameters(apart)}",
            f"the script never calls the DDP module that contains them, and {_evidence(apart.drift)}, according to "
            f"sampled values on {_ranks(apart.drift)}",
            _CALL_DDP,
            None,
            is_correctness=True,
            comes_first=True,
            numbers=only_known(num_parameters=len(apart.names), apart_share=apart.drift.apart),
        )


def unwrapped_parameters(replicas: Replicas, view: View) -> Iterator[Finding]:
    """Report parameters outside DDP modules that were the same on all ranks at first but are trained separately."""
    for apart in _apart(replicas, view, is_wrapped=False):
        yield Finding(
            "unwrapped-parameters",
            f"Each rank trains its own copy of {_parameters(apart)}",
            f"no DDP module contains them; they were equal on {_ranks(apart.drift)} before the first step, and "
            f"{_evidence(apart.drift)}, according to sampled values",
            _WRAP_THEM,
            None,
            is_correctness=True,
            may_be_meant=True,
            numbers=only_known(num_parameters=len(apart.names), apart_share=apart.drift.apart),
        )


def _apart(replicas: Replicas, view: View, *, is_wrapped: bool) -> list[TrainedApart]:
    if not view.is_one_group:
        return []
    return [one for one in replicas.trained_apart if one.is_wrapped is is_wrapped]


def _parameters(apart: TrainedApart) -> str:
    count = "1 parameter" if len(apart.names) == 1 else f"{len(apart.names)} parameters"
    of_module = f" of {apart.module}" if apart.module else " outside all modules"
    return f"{count}{of_module}: {listed(apart.names, _MOST_NAMES)}"


_CALL_DDP = (
    "Compute the loss from the output of the DDP module itself: call model(…), not model.module(…) or a method of "
    "model.module. DDP averages gradients only after a forward pass of the DDP module itself. To use another method of "
    "the model, call it inside forward()."
)
_WRAP_THEM = (
    "If all ranks should have the same values, make these parameters part of the module that DistributedDataParallel "
    "wraps, or wrap the module that contains them. If each rank should train its own copy, no change is needed."
)
_MOST_NAMES = 4


def _evidence(drift: Drift) -> str:
    if drift.differed_before:
        return "they already differed when the recording began"
    steps = "one step" if drift.num_steps == 1 else f"{drift.num_steps} steps"
    return f"within {steps}, the difference between ranks grew to {drift.apart:.0%} of the change in the parameters"


def _ranks(drift: Drift) -> str:
    return "both ranks" if len(drift.ranks) == 2 else f"{len(drift.ranks)} ranks"


def _advice(drift: Drift) -> str:
    if drift.num_unreduced_passes:
        return (
            "Call backward() once for each forward pass, on the sum of the losses: DDP reduces gradients in the first "
            "backward pass after a forward pass, and does not reduce the gradients of a second pass. This happened "
            f"{_times(drift.num_unreduced_passes)} in the recorded steps."
        )
    if drift.differed_before:
        return (
            "DDP makes the copies equal when it wraps the model. Load checkpoints and initialize parameters before "
            "DDP wraps it, or in the same way on every rank."
        )
    return (
        "Look for anything that changes parameters or gradients on each rank separately: changes to gradients after "
        "backward(), optimizers with different settings or random numbers, or parameters that were replaced after DDP "
        "wrapped the model."
    )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


REPLICAS: Topic[None, Replicas] = Topic(
    "replicas",
    rules=(copies_differ, different_learning_rates, unfrozen_parameters, unaveraged_parameters, unwrapped_parameters),
    of_run=_of_run,
)


Written = tuple[str, tuple[str, ...]]
"""host of a rank, and the paths of the checkpoints that the rank wrote"""


def same_checkpoint(written: Mapping[int, Written], _view: View) -> Iterator[Finding]:
    """Report checkpoint files that several ranks write."""
    writers: dict[tuple[str, str], list[int]] = {}
    for rank, (host, paths) in written.items():
        for path in paths:
            writers.setdefault((host, path), []).append(rank)
    shared = {path: ranks for (_, path), ranks in writers.items() if len(ranks) > 1}
    if shared:
        path, ranks = next(iter(shared.items()))
        yield Finding(
            "same-checkpoint",
            f"{len(ranks)} ranks save the same checkpoint",
            f"{ranks_in_words(ranks)} all wrote {path}" + (f" ({len(shared)} such files)" if len(shared) > 1 else ""),
            "Save on one rank only: if dist.get_rank() == 0: torch.save(…). If other ranks read the file, call "
            "dist.barrier() afterwards.",
            None,
            is_correctness=True,
            numbers=only_known(num_ranks=len(ranks), num_files=len(shared)),
        )


CHECKPOINTS: Topic[None, Mapping[int, Written]] = Topic(
    "checkpoints",
    rules=(same_checkpoint,),
    of_run=lambda view: {rank: (record.host, record.checkpoints) for rank, record in view.records.items()},
)
