"""Find what limits a step with much exposed communication, and which changes would help.

    waiting    more than half of the communication is waiting for late ranks
    latency    a step sends less than 1 MiB of gradients, so the number of messages matters, not their size
    bandwidth  all other cases

The other topics recommend changes to DDP. This topic names the limit that remains if none of these changes helps much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import Annotated, Any

from ddpprof.engine.finding import ACCUMULATED, ChangeKind, Predicted, within
from ddpprof.engine.numbers import DEVICE
from ddpprof.engine.topic import ReportView, Topic, View, may_be_chance
from ddpprof.layout import Line, Section, count, in_ms, megabytes, percent, range_in_ms
from ddpprof.topics.accumulation import ACCUMULATION
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.failure import FAILURE
from ddpprof.topics.ranks.across import ACROSS, AcrossRanks
from ddpprof.topics.steps.view import steps_of


class BoundBy(StrEnum):
    """What limits a step: waiting for other ranks, latency or bandwidth."""

    WAITING = "waiting"
    LATENCY = "latency"
    BANDWIDTH = "bandwidth"


class WhatHelps(StrEnum):
    """A change whose effect on the step time is predicted by a replay."""

    DOUBLE_BATCH = "double_batch"
    ACCUMULATION = "accumulation"
    NO_SYNC = "no_sync"
    COMPRESSION = "compression"
    DOUBLE_LINK = "double_link"
    BUCKETS = "buckets"


@dataclass(frozen=True, slots=True)
class WouldHelp:
    """One change, and its predicted gain per step, or per batch of the recorded size."""

    what: WhatHelps
    predicted: Predicted
    is_noise: bool = False
    """True if the gain may be due to chance, or if the change may make steps longer"""


@dataclass(frozen=True, slots=True)
class Bound:
    """What limits a step with much exposed communication. Times are means, in ns per step."""

    by: BoundBy
    step_ns: Annotated[int, DEVICE]
    exposed_ns: Annotated[int, DEVICE]
    comm_ns: Annotated[int, DEVICE]
    waiting_ns: Annotated[int | None, DEVICE]
    """part of the communication time that ranks spend waiting for late ranks; ``None`` if collectives were not
    matched
    """
    gradient_bytes: int | None
    num_collectives: int
    would_help: tuple[WouldHelp, ...]


_MUCH = 0.1
"""what limits the step is reported only if exposed communication takes at least this fraction of the step"""
_MOSTLY = 0.5
_LITTLE_BYTES = 1 << 20
_OF_BYTES = (WhatHelps.COMPRESSION, WhatHelps.DOUBLE_LINK)
"""changes that save time per byte but no latency; the replay does not know how much of a small bucket's time is
latency
"""


def find_bound(report: ReportView, view: View) -> Bound | None:
    """Return what limits the step; ``None`` if little communication is exposed, or if no step was profiled."""
    steps = [step for rank in steps_of(report) for step in rank.averaged(report.usual_steps)]
    if not steps or not any(step.num_comm_kernels for step in steps):
        return None
    step_ns, exposed_ns, comm_ns = (
        round(fmean(values))
        for values in (
            [step.duration_ns for step in steps],
            [step.exposed_ns for step in steps],
            [step.comm_ns for step in steps],
        )
    )
    exposed_ns = min(exposed_ns, step_ns)  # communication of the last step may end after the step
    if exposed_ns < _MUCH * step_ns:
        return None
    num_collectives = round(median(step.num_comm_kernels for step in steps))
    num_bytes, waiting_ns = _gradient_bytes(report[BUCKETS], num_collectives), _waiting_ns(report[ACROSS])
    if waiting_ns is not None and waiting_ns > comm_ns:
        waiting_ns = None  # it is a mean over all steps, including slow ones that the other means exclude
    by = _bound_by(comm_ns, waiting_ns, num_bytes)
    return Bound(
        by=by,
        step_ns=step_ns,
        exposed_ns=exposed_ns,
        comm_ns=comm_ns,
        waiting_ns=waiting_ns,
        gradient_bytes=num_bytes,
        num_collectives=num_collectives,
        would_help=tuple(_would_help(view, by, exposed_ns)),
    )


def _bound_by(comm_ns: int, waiting_ns: int | None, num_bytes: int | None) -> BoundBy:
    if waiting_ns is not None and waiting_ns > _MOSTLY * comm_ns:
        return BoundBy.WAITING
    return BoundBy.LATENCY if num_bytes is not None and num_bytes < _LITTLE_BYTES else BoundBy.BANDWIDTH


def _gradient_bytes(buckets: Sequence[BucketRow] | None, num_collectives: int) -> int | None:
    """Return the gradient bytes sent per step; ``None`` if a bucket size is unknown or no buckets are known.

    Also returns ``None`` if a step has fewer collectives than buckets, because the steps then train different modules.
    """
    if buckets is None or num_collectives < len(buckets):
        return None
    known = [bucket.num_passes * bucket.num_bytes for bucket in buckets if bucket.num_bytes is not None]
    return sum(known) if known and len(known) == len(buckets) else None


def _waiting_ns(across: AcrossRanks | None) -> int | None:
    """Return the mean waiting time per rank and step, in ns; ``None`` if collectives were not matched."""
    per_rank = [one.waiting_per_step_ns for one in across.waiting] if across is not None else []
    known = [waiting_ns for waiting_ns in per_rank if waiting_ns is not None]
    return round(fmean(known)) if known else None


def _would_help(view: View, by: BoundBy, exposed_ns: int) -> Sequence[WouldHelp]:
    """Return the predicted gain of each change, limited to the exposed communication.

    `WhatHelps.NO_SYNC` is included only if gradients accumulate. Otherwise (for example, if an optimizer evaluates its
    closure several times per step), every backward pass needs its own reduced gradients.
    """
    predictions = view.predictions
    best = predictions.best_buckets
    found: list[tuple[WhatHelps, Predicted | None]] = [
        (WhatHelps.DOUBLE_BATCH, predictions.double_batch),
        (WhatHelps.ACCUMULATION, predictions.accumulation),
        (WhatHelps.NO_SYNC, predictions.no_sync if view[ACCUMULATION] else None),
        (WhatHelps.COMPRESSION, predictions.compression),
        (WhatHelps.DOUBLE_LINK, predictions.double_link),
        (WhatHelps.BUCKETS, best.predicted if best is not None else None),
    ]
    known = [(what, within(predicted, exposed_ns)) for what, predicted in found if predicted is not None]
    return [
        WouldHelp(what, predicted, may_be_chance(predicted, view.step_noise_ns))
        for what, predicted in known
        if not (by is BoundBy.LATENCY and what in _OF_BYTES)
    ]


def bound_lines(bound: Bound, report: ReportView) -> Iterable[Section]:
    if report[FAILURE] is not None:
        return
    hooked = any(module.comm_hook for module in report.modules)
    yield Line(f"{bound_sentence(bound)} {_why(bound, hooked)}")
    helps = [one for one in bound.would_help if not one.is_noise]
    may_help = [one for one in bound.would_help if one.is_noise and one.predicted.gain_ns > 0]
    cannot = [one for one in bound.would_help if one.predicted.gain_ns <= 0]
    if helps:
        yield Line(
            f"According to a replay of the recorded steps, these changes would help: {'; '.join(map(_gain, helps))}."
        )
    if may_help:
        gains = "; ".join(map(_gain, may_help))
        yield Line(f"These changes may or may not help, because the predictions are uncertain: {gains}.")
    if cannot:
        yield Line(
            f"According to the replay, these changes do not help: {', '.join(_WHAT[one.what] for one in cannot)}."
        )
    if not bound.would_help:
        yield Line(_NOT_REPLAYED[bound.by])


def bound_remarks(report: ReportView) -> Iterable[str]:
    """Yield sentences about the communication time and the changes that would reduce it."""
    bound = report[BOUND]
    if bound is None or report[FAILURE] is not None:
        return
    waiting = f"; {in_ms(bound.waiting_ns)} of it is spent waiting for late ranks" if bound.waiting_ns else ""
    removable = ", and no DDP setting can remove this waiting time" if bound.by is BoundBy.WAITING and waiting else ""
    yield f"Communication takes {in_ms(bound.comm_ns)} per step{waiting}{removable}."
    found = {one.change.kind for one in report.findings if one.change is not None and not one.is_noise}
    for one in bound.would_help:
        if not one.is_noise and one.predicted.gain_ns > 0 and _CHANGES.get(one.what) not in found:
            what, batch = _WHAT[one.what], _NEW_BATCH.get(one.what)
            yield f"{what[0].upper()}{what[1:]} would save {_saved(one)}{'' if batch is None else f', {batch}'}."


def bound_sentence(bound: Bound) -> str:
    """Return a sentence that names the limit and the share of exposed communication in the step."""
    share = percent(bound.exposed_ns / bound.step_ns if bound.step_ns else None)
    limits = _OF_MOST if bound.exposed_ns >= _MOSTLY * bound.step_ns else _OF_PART
    return f"{limits[bound.by]}: exposed communication takes {in_ms(bound.exposed_ns)}, {share} of the step."


_OF_MOST = {
    BoundBy.WAITING: "The step is long because ranks wait for each other",
    BoundBy.LATENCY: "The step is long because of communication latency",
    BoundBy.BANDWIDTH: "The step is communication-bound",
}
_OF_PART = {
    BoundBy.WAITING: "Ranks wait for each other",
    BoundBy.LATENCY: "Communication latency is not hidden",
    BoundBy.BANDWIDTH: "Part of the communication is not hidden",
}


def _why(bound: Bound, hooked: bool) -> str:
    """Explain the limit.

    `hooked`: whether there is a comm hook, which may launch collectives that the profiler does not record.
    """
    calls = f"{'at least ' if hooked else ''}{count(bound.num_collectives, 'collective')}"
    volume = "" if bound.gradient_bytes is None else f" for {megabytes(bound.gradient_bytes)} MB of gradients"
    if bound.by is BoundBy.WAITING:
        waiting_ns = bound.waiting_ns or 0
        return (
            f"Of {in_ms(bound.comm_ns)} in {calls}{volume}, a rank spends about {in_ms(waiting_ns)} waiting for "
            f"ranks that arrive later. No DDP setting can remove this time."
        )
    if bound.by is BoundBy.LATENCY:
        return f"A step has {calls}{volume}. With so little data, latency may cost more than the transfer itself."
    return f"A step has {calls}{volume}."


_WHAT = {
    WhatHelps.DOUBLE_BATCH: "doubling the batch size",
    WhatHelps.ACCUMULATION: f"accumulating gradients over {ACCUMULATED} batches",
    WhatHelps.NO_SYNC: "reducing gradients only in the last backward pass of a step",
    WhatHelps.COMPRESSION: "sending half as many bytes",
    WhatHelps.DOUBLE_LINK: "a network with twice the bandwidth",
    WhatHelps.BUCKETS: "different bucket sizes",
}


_CHANGES = {WhatHelps.NO_SYNC: ChangeKind.NO_SYNC, WhatHelps.COMPRESSION: ChangeKind.COMM_HOOK}
"""change → kind of the change in a finding that recommends the same"""
_NEW_BATCH = {
    WhatHelps.DOUBLE_BATCH: "with twice the batch size",
    WhatHelps.ACCUMULATION: f"with {ACCUMULATED} times the batch size, and one optimizer step instead of {ACCUMULATED}",
}
"""change → its effect on training that may call for different hyperparameters"""


def _gain(one: WouldHelp) -> str:
    batch = _NEW_BATCH.get(one.what)
    return f"{_WHAT[one.what]}, {_saved(one)}{'' if batch is None else f' ({batch})'}"


def _saved(one: WouldHelp) -> str:
    predicted, per = one.predicted, "batch" if one.what in _NEW_BATCH else "step"
    return f"{in_ms(predicted.gain_ns)} per {per} {range_in_ms(predicted.low_ns, predicted.high_ns)}"


_NOT_REPLAYED = {
    BoundBy.WAITING: "This step cannot be replayed with other settings. Ranks wait less if they all take the same "
    "time per step; larger batches and less frequent gradient reduction spread the waiting over more work.",
    BoundBy.LATENCY: "This step cannot be replayed with other settings. Larger batches and less frequent gradient "
    "reduction spread the latency over more work, and fewer buckets reduce it; more network "
    "bandwidth does not.",
    BoundBy.BANDWIDTH: "This step cannot be replayed with other settings. Larger batches, less frequent gradient "
    "reduction, compressed gradients and a faster network reduce the cost of communication.",
}


BOUND: Topic[Any, Bound] = Topic("bound", sections={"findings": bound_lines})
