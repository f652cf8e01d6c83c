"""Rules about collectives that the script calls itself, outside DDP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpprof.findings.finding import Finding, Observed, in_ms, size
from ddpprof.measures.collectives.script_collectives import OutsideCalls, Place, Purpose


def _of(o: Observed, *purposes: Purpose) -> list[OutsideCalls]:
    """Return the calls worth reporting; in the forward only barriers, as the model's own layers may need the rest."""
    calls = [
        one
        for one in o.outside
        if one.purpose in purposes and (one.place is not Place.FORWARD or one.purpose is Purpose.BARRIER)
    ]
    return calls if o.worth(_exposed(calls)) else []


def _exposed(calls: Sequence[OutsideCalls]) -> int:
    return sum(one.exposed_ns for one in calls)


def _said(calls: Sequence[OutsideCalls]) -> str:
    parts = []
    for one in calls:
        volume = "" if one.num_bytes is None else f" of {size(one.num_bytes)} in all"
        parts.append(f"{one.num_calls} × {one.kind.replace('_', '-')}{volume}, {_WHERE[one.place]}")
    return f"{'; '.join(parts)}: {in_ms(_exposed(calls))} per step are exposed"


_WHERE = {
    Place.FORWARD: "in the forward",
    Place.AFTER_FORWARD: "between forward and backward",
    Place.AFTER_BACKWARD: "between backward and optimizer",
    Place.OPTIMIZER: "in the optimizer",
    Place.AFTER_OPTIMIZER: "between the optimizer and the next forward",
}


def parameter_averaging(o: Observed) -> Iterator[Finding]:
    """Report parameters that are averaged by hand, and gradients that are averaged in addition to DDP."""
    calls = _of(o, Purpose.PARAMETERS)
    before = [one for one in calls if one.place is Place.AFTER_BACKWARD]
    after = [one for one in calls if one.place is not Place.AFTER_BACKWARD]
    if o.worth(_exposed(after)):
        yield Finding(
            "parameter-averaging",
            "Parameters are averaged over the ranks in every step, in addition to DDP",
            f"{_said(after)}; DDP averages gradients, so parameters are equal on all ranks anyway",
            "Leave it out. To average parameters instead of gradients, let torch do it every N steps with "
            "PeriodicModelAverager, PostLocalSGDOptimizer and DDP's post_localSGD_hook.",
            _exposed(after),
        )
    if o.worth(_exposed(before)) and not o.trains_beside_ddp:
        yield Finding(
            "gradient-averaging",
            "Gradients are averaged over the ranks by hand, in addition to DDP",
            _said(before),
            "Leave it out: DDP has already averaged the gradients during backward().",
            _exposed(before),
        )


def metrics_every_step(o: Observed) -> Iterator[Finding]:
    """Report small reductions in every step, such as a loss or an accuracy."""
    calls = [one for one in _of(o, Purpose.FEW_NUMBERS, Purpose.OTHER) if one.kind in _REDUCES]
    unsized = [one for one in calls if one.num_bytes is None and not _may_enter_the_loss(one)]
    calls = [one for one in calls if one.purpose is Purpose.FEW_NUMBERS or one in unsized]
    if not o.worth(_exposed(calls)):
        return
    number = sum(one.num_calls for one in calls)
    what = "1 collective" if number == 1 else f"{number} collectives"
    yield Finding(
        "metrics-every-step",
        f"{what} per step outside DDP" if unsized else f"{what} of a few numbers in every step",
        _said(calls)
        + ("; the trace lacks their sizes, which --record-shapes adds" if unsized else "")
        + "; in each, every rank waits for the last one",
        f"{'If these are metrics, add' if unsized else 'Add'} them up on the device, and all-reduce them every N steps "
        "or once per epoch, several in one tensor. Leave alone those whose result the step needs, such as the loss's "
        "normalisation, a gradient norm for clipping, or a decision that all ranks share."
        f"{_gradients_by_hand(unsized)}{_of_trainer(o, calls)}",
        _exposed(calls),
    )


def _of_trainer(o: Observed, calls: Sequence[OutsideCalls]) -> str:
    """Say which collective of its own transformers' Trainer has."""
    if o.framework != "transformers" or all("gather" not in one.kind for one in calls):
        return ""
    return (
        " The Trainer itself adds up the number of tokens over all ranks in every step: "
        "TrainingArguments(average_tokens_across_devices=False) leaves that out, and each rank then averages its loss "
        "over its own tokens."
    )


def _may_enter_the_loss(call: OutsideCalls) -> bool:
    """Return whether the backward pass may need its result, as that of embeddings which are gathered."""
    return call.place is Place.AFTER_FORWARD and "gather" in call.kind


def _gradients_by_hand(unsized: Sequence[OutsideCalls]) -> str:
    """Return advice in case gradients, which are needed in every step, are reduced after the backward pass."""
    if not any(one.place is Place.AFTER_BACKWARD for one in unsized):
        return ""
    return (
        " If they average gradients of parameters outside DDP, every step needs them: put these parameters "
        "into the DDP module, or send them in one tensor."
    )


_REDUCES = ("all_reduce", "reduce", "all_gather", "gather")


def optimizer_broadcasts(o: Observed) -> Iterator[Finding]:
    """Report an optimizer that steps part of the parameters on each rank, and broadcasts them."""
    calls = [one for one in o.outside if one.place is Place.OPTIMIZER and one.kind == "broadcast"]
    if not o.worth(_exposed(calls)):
        return
    number = sum(one.num_calls for one in calls)
    pieces = "1 piece" if number == 1 else f"{number} pieces"
    fewer = "" if number <= (o.world_size or 1) else "parameters_as_bucket_view=True sends fewer and larger pieces. "
    yield Finding(
        "optimizer-broadcasts",
        f"The optimizer broadcasts updated parameters in {pieces} per step",
        _said(calls),
        f"ZeroRedundancyOptimizer does this so that each rank holds only a part of its state. {fewer}If memory allows, "
        "an ordinary optimizer on each rank sends nothing.",
        _exposed(calls),
    )


def barrier_in_loop(o: Observed) -> Iterator[Finding]:
    """Report ``barrier()`` in the training loop."""
    calls = _of(o, Purpose.BARRIER)
    if not calls:
        return
    number = sum(one.num_calls for one in calls)
    yield Finding(
        "barrier-in-loop",
        f"{'There is a barrier' if number == 1 else f'There are {number} barriers'} in the training loop",
        f"{_said(calls)}; on an accelerator it also drains the queue of launched work",
        "Take it out of the loop: DDP's all-reduces already make the ranks wait for each other in every step."
        + (_LIGHTNING_SYNCS if o.framework == "lightning" else ""),
        _exposed(calls),
    )


_LIGHTNING_SYNCS = (
    " Lightning adds one for each value that self.log(…, sync_dist=True) averages: log without sync_dist."
)
