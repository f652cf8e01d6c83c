"""What bounds a step with exposed communication, and what would help besides the findings."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.engine.predictions import ACCUMULATED
from ddpprof.layout import Line, Remark, Section, count, megabytes, ms, percent
from ddpprof.report import Bound, BoundBy, Report, WhatHelps, WouldHelp


def bound_lines(report: Report) -> Iterable[Section]:
    bound = report.bound
    if bound is None or report.failure is not None:
        return
    hooked = any(module.comm_hook for module in report.job.modules)
    yield Line(f"{bound_sentence(bound)} {_why(bound, hooked)}")
    helps = [one for one in bound.would_help if not one.is_noise]
    may_help = [one for one in bound.would_help if one.is_noise and one.predicted.gain_ns > 0]
    cannot = [one for one in bound.would_help if one.predicted.gain_ns <= 0]
    if helps:
        yield Line(f"According to a replay of the recorded steps, these would help: {'; '.join(map(_gain, helps))}.")
    if may_help:
        gains = "; ".join(map(_gain, may_help))
        yield Line(f"These may or may not help (the predicted gain is within its uncertainty): {gains}.")
    if cannot:
        yield Line(f"According to the replay, these do not help: {', '.join(_WHAT[one.what] for one in cannot)}.")
    if not bound.would_help:
        yield Line(_NOT_REPLAYED[bound.by])


def bound_remarks(report: Report) -> Iterable[Remark]:
    """Say in a few words what bounds the step, and what would help."""
    bound = report.bound
    if bound is None or report.failure is not None:
        return
    waiting = f"; {ms(bound.waiting_ns)} ms of it is spent waiting for late ranks" if bound.waiting_ns else ""
    yield Remark(f"Communication takes {ms(bound.comm_ns)} ms per step{waiting}", "", is_advice=True)
    for one in bound.would_help:
        if not one.is_noise and one.predicted.gain_ns > 0:
            gain, batch = _saved(one), _NEW_BATCH.get(one.what)
            yield Remark(f"{_WHAT[one.what]} would save", gain if batch is None else f"{gain}; {batch}", is_advice=True)


def bound_sentence(bound: Bound) -> str:
    """Return which share of the step is exposed communication, and what bounds it."""
    share = percent(bound.exposed_ns / bound.step_ns if bound.step_ns else None)
    return f"{_BY[bound.by]}: {share} of it, {ms(bound.exposed_ns)} ms, is exposed communication."


_BY = {
    BoundBy.WAITING: "The step is long because ranks wait for each other",
    BoundBy.LATENCY: "The step is long because of communication latency",
    BoundBy.BANDWIDTH: "Communication lengthens the step",
}


def _why(bound: Bound, hooked: bool) -> str:
    """Explain the bound. `hooked`: a comm hook may send from gloo's own threads, which the profiler does not see."""
    calls = f"{'at least ' if hooked else ''}{count(bound.num_collectives, 'collective')}"
    volume = "" if bound.gradient_bytes is None else f" for {megabytes(bound.gradient_bytes)} MB of gradients"
    if bound.by is BoundBy.WAITING:
        waiting_ns = bound.waiting_ns or 0
        return (
            f"Of {ms(bound.comm_ns)} ms in {calls}{volume}, a rank spends about {ms(waiting_ns)} ms waiting for "
            "ranks that arrive later; no DDP setting removes this time."
        )
    if bound.by is BoundBy.LATENCY:
        return f"A step has {calls}{volume}, so little that latency may cost more than the transfer of the bytes."
    return f"A step has {calls}{volume}."


_WHAT = {
    WhatHelps.DOUBLE_BATCH: "batches twice as large",
    WhatHelps.ACCUMULATION: f"accumulating gradients over {ACCUMULATED} batches",
    WhatHelps.NO_SYNC: "reducing gradients only in the last backward pass of a step",
    WhatHelps.COMPRESSION: "sending half as many bytes",
    WhatHelps.DOUBLE_LINK: "a network with twice the bandwidth",
    WhatHelps.BUCKETS: "other buckets",
}


_NEW_BATCH = {
    WhatHelps.DOUBLE_BATCH: "with twice the batch size",
    WhatHelps.ACCUMULATION: f"with {ACCUMULATED} times the batch size, and one optimizer step instead of {ACCUMULATED}",
}
"""side effects of these changes, which may need other hyperparameters"""


def _gain(one: WouldHelp) -> str:
    batch = _NEW_BATCH.get(one.what)
    return f"{_WHAT[one.what]}, {_saved(one)}{'' if batch is None else f' ({batch})'}"


def _saved(one: WouldHelp) -> str:
    predicted, per = one.predicted, "batch" if one.what in _NEW_BATCH else "step"
    return f"{ms(predicted.gain_ns)} ms per {per} ({ms(predicted.low_ns)} – {ms(predicted.high_ns)})"


_NOT_REPLAYED = {
    BoundBy.WAITING: "This step cannot be replayed with other settings. Ranks wait less if they do equal work in equal "
    "time; larger batches and less frequent gradient reduction spread the waiting over more work.",
    BoundBy.LATENCY: "This step cannot be replayed with other settings. Larger batches and less frequent gradient "
    "reduction spread the latency over more work, and fewer buckets reduce it; more network "
    "bandwidth does not.",
    BoundBy.BANDWIDTH: "This step cannot be replayed with other settings. Larger batches, less frequent gradient "
    "reduction, fewer bits per gradient and a faster network reduce communication.",
}
