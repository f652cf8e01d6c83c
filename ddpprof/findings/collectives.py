"""Rules about collectives that the script asks for beside DDP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpprof.findings.finding import Finding, Observed, ms, size
from ddpprof.measures.collectives.script_collectives import OutsideCalls, Place, Purpose


def _of(o: Observed, *purposes: Purpose) -> list[OutsideCalls]:
    """Those worth a word: in the forward barriers alone, as the model's own layers may need all else."""
    calls = [one for one in o.outside if one.purpose in purposes and (one.place is not Place.FORWARD or _waits(one))]
    return calls if o.worth(_exposed(calls)) else []


def _waits(one: OutsideCalls) -> bool:
    return one.purpose is Purpose.BARRIER


def _exposed(calls: Sequence[OutsideCalls]) -> int:
    return sum(one.exposed_ns for one in calls)


def _said(calls: Sequence[OutsideCalls]) -> str:
    parts = []
    for one in calls:
        volume = "" if one.num_bytes is None else f" of {size(one.num_bytes)} in all"
        parts.append(f"{one.num_calls} × {one.kind.replace('_', '-')}{volume}, {_WHERE[one.place]}")
    return f"{'; '.join(parts)}: {ms(_exposed(calls))} per step that no computation hides"


_WHERE = {
    Place.FORWARD: "in the forward",
    Place.AFTER_FORWARD: "between forward and backward",
    Place.AFTER_BACKWARD: "between backward and optimizer",
    Place.OPTIMIZER: "in the optimizer",
    Place.AFTER_OPTIMIZER: "between the optimizer and the next forward",
}


def parameter_averaging(o: Observed) -> Iterator[Finding]:
    """Parameters are averaged by hand, or gradients that DDP averages."""
    calls = _of(o, Purpose.PARAMETERS)
    before = [one for one in calls if one.place is Place.AFTER_BACKWARD]
    after = [one for one in calls if one.place is not Place.AFTER_BACKWARD]
    if o.worth(_exposed(after)):
        yield Finding(
            "parameter-averaging",
            "Parameters are averaged over the ranks in every step, beside DDP",
            f"{_said(after)}; DDP averages gradients, so that parameters are equal on all ranks without it",
            "Leave it out. To average parameters instead of gradients, let torch do it every N steps: "
            "PeriodicModelAverager with PostLocalSGDOptimizer, and DDP's post_localSGD_hook.",
            _exposed(after),
        )
    if o.worth(_exposed(before)):
        yield Finding(
            "gradient-averaging",
            "Gradients are averaged over the ranks by hand, beside DDP",
            _said(before),
            "Leave it out: after backward() DDP's gradients are averages already, hidden behind the backward pass.",
            _exposed(before),
        )


def metrics_every_step(o: Observed) -> Iterator[Finding]:
    """Small reductions in every step: a loss, an accuracy."""
    calls = [one for one in _of(o, Purpose.FEW_NUMBERS, Purpose.OTHER) if one.kind in _REDUCES]
    unsized = [one for one in calls if one.num_bytes is None]
    calls = [one for one in calls if one.purpose is Purpose.FEW_NUMBERS or one in unsized]
    if not o.worth(_exposed(calls)):
        return
    number = sum(one.num_calls for one in calls)
    what = "1 collective" if number == 1 else f"{number} collectives"
    yield Finding(
        "metrics-every-step",
        f"{what} per step beside DDP" if unsized else f"{what} of a few numbers in every step",
        _said(calls)
        + ("; how large they are is not in the trace, --record-shapes adds it" if unsized else "")
        + "; in each, every rank waits for the last",
        f"{'If these are metrics, add' if unsized else 'Add'} them up on the device, and all-reduce them every N steps "
        f"or once an epoch, several in one tensor.{_gradients_by_hand(unsized)}",
        _exposed(calls),
    )


def _gradients_by_hand(unsized: Sequence[OutsideCalls]) -> str:
    """Between backward and optimizer, what is reduced may well be gradients, and those are needed in every step."""
    if not any(one.place is Place.AFTER_BACKWARD for one in unsized):
        return ""
    return (
        " If they average gradients of parameters outside DDP, they are needed in every step: put these parameters "
        "into the DDP module, or send them in one tensor."
    )


_REDUCES = ("all_reduce", "reduce", "all_gather", "gather")


def optimizer_broadcasts(o: Observed) -> Iterator[Finding]:
    """Each rank's optimizer steps some of the parameters, and sends them to the others."""
    calls = [one for one in o.outside if one.place is Place.OPTIMIZER and one.kind == "broadcast"]
    if not o.worth(_exposed(calls)):
        return
    number = sum(one.num_calls for one in calls)
    pieces = "1 piece" if number == 1 else f"{number} pieces"
    yield Finding(
        "optimizer-broadcasts",
        f"The optimizer broadcasts what it has computed, in {pieces} per step",
        _said(calls),
        "ZeroRedundancyOptimizer does so, to hold its state only once: parameters_as_bucket_view=True sends fewer and "
        "larger pieces. Where memory is not short, an optimizer of its own on each rank sends nothing.",
        _exposed(calls),
    )


def barrier_in_loop(o: Observed) -> Iterator[Finding]:
    """``barrier()`` in the training loop."""
    calls = _of(o, Purpose.BARRIER)
    if not calls:
        return
    number = sum(one.num_calls for one in calls)
    yield Finding(
        "barrier-in-loop",
        f"{'A barrier stands' if number == 1 else f'{number} barriers stand'} in the training loop",
        f"{_said(calls)}; on an accelerator it also drains the queue of launched work",
        "Take it out of the loop: DDP's all-reduces make the ranks wait for each other in every step already."
        + (_LIGHTNING_SYNCS if o.framework == "lightning" else ""),
        _exposed(calls),
    )


_LIGHTNING_SYNCS = (
    " Lightning puts one before each value that self.log(…, sync_dist=True) averages: log without sync_dist."
)
