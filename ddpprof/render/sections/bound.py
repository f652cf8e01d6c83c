"""What bounds a step whose communication is not hidden, and what would help beside the findings."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.findings.predictions import ACCUMULATED
from ddpprof.layout import Line, Section, count, megabytes, ms, percent
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
        yield Line(f"By the replay of the recorded steps, these would help: {'; '.join(map(_gain, helps))}.")
    if may_help:
        yield Line(f"These may help, or not: {'; '.join(map(_gain, may_help))}.")
    if cannot:
        yield Line(f"By the replay these do not help: {', '.join(_WHAT[one.what] for one in cannot)}.")
    if not bound.would_help:
        yield Line(_NOT_REPLAYED[bound.by])


def bound_sentence(bound: Bound) -> str:
    """Return what share of the step nothing hides, and what it is."""
    share = percent(bound.exposed_ns / bound.step_ns if bound.step_ns else None)
    return f"{_BY[bound.by]}: {share} of it, {ms(bound.exposed_ns)} ms, is communication that no computation hides."


_BY = {
    BoundBy.WAITING: "Waiting for each other bounds the step",
    BoundBy.LATENCY: "The latency of communication bounds the step",
    BoundBy.BANDWIDTH: "Communication bounds the step",
}


def _why(bound: Bound, hooked: bool) -> str:
    """`hooked`: a comm hook may send from gloo's own threads, whose calls the profiler does not see."""
    calls = f"{'at least ' if hooked else ''}{count(bound.num_collectives, 'collective')}"
    volume = "" if bound.gradient_bytes is None else f" for {megabytes(bound.gradient_bytes)} MB of gradients"
    if bound.by is BoundBy.WAITING:
        waiting_ns = bound.waiting_ns or 0
        return (
            f"Of {ms(bound.comm_ns)} ms in {calls}{volume}, a rank spends about {ms(waiting_ns)} ms waiting for ranks "
            "that come later; no setting of DDP removes that."
        )
    if bound.by is BoundBy.LATENCY:
        return f"A step has {calls}{volume}: so little that the latency of each may cost more than its bytes."
    return f"A step has {calls}{volume}."


_WHAT = {
    WhatHelps.DOUBLE_BATCH: "batches of twice the size",
    WhatHelps.ACCUMULATION: f"reducing gradients only every {ACCUMULATED} batches",
    WhatHelps.NO_SYNC: "reducing gradients only in the last backward pass of a step",
    WhatHelps.COMPRESSION: "sending half of the bytes",
    WhatHelps.DOUBLE_LINK: "a network of twice the bandwidth",
    WhatHelps.BUCKETS: "other buckets",
}
_PER_BATCH = (WhatHelps.DOUBLE_BATCH, WhatHelps.ACCUMULATION)


def _gain(one: WouldHelp) -> str:
    predicted, per = one.predicted, "batch" if one.what in _PER_BATCH else "step"
    interval = f"{ms(predicted.low_ns)} – {ms(predicted.high_ns)}"
    return f"{_WHAT[one.what]}, {ms(predicted.gain_ns)} ms per {per} ({interval})"


_NOT_REPLAYED = {
    BoundBy.WAITING: "This step cannot be replayed under other settings. Ranks that do equal work in equal time wait "
    "less; larger batches, and gradients that are reduced less often, spread the waiting over more work.",
    BoundBy.LATENCY: "This step cannot be replayed under other settings. Larger batches, and gradients that are "
    "reduced less often, spread the latency over more work; other buckets, and a network of more bandwidth, do not.",
    BoundBy.BANDWIDTH: "This step cannot be replayed under other settings. Larger batches, gradients that are "
    "reduced less often or in fewer bits, and a faster network leave less of it.",
}
