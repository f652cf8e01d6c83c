"""Gradients that the script reduces without torch's DDP."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import Line, Section, count, megabytes, ms
from ddpprof.report import Report


def own_reduction_line(report: Report) -> Iterable[Section]:
    own = report.own_reduction
    if own is None:
        return
    size = "" if own.num_bytes is None else f" of {megabytes(own.num_bytes)} MB in all"
    yield Line(
        "Gradients are all-reduced without torch's DDP (Apex-like), in hooks of the backward pass: "
        f"{count(own.num_all_reduces, 'all-reduce')} per step{size}, {ms(own.comm_ns)} ms, {ms(own.exposed_ns)} ms of "
        "it exposed."
    )
