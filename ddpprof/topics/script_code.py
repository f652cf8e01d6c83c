r"""Find the lines of the script that take time in a step because of their own Python code.

    idle of a line = |samples of the line ∩ idle gaps of at least 0.5 ms|, median over steps
    data of a line = |samples of the line ∩ waiting for data|, median over steps
    backward of a line = |samples of the line in a backward pass ∩ step \ collectives of layers|, median over steps
    outside of a line = |samples of the line ∩ time outside the passes|, median over steps

The time outside the passes is the step without these times: from the start of each DDP forward to the end of its
backward pass, which includes the loss; the optimizer; waiting for data; communication; and, for lines of the script's
own code, idle gaps. On an accelerator, it is instead the duration of the kernels that a line launches at these times.

An idle gap is a time in which no operator runs on the accelerator or, in training on CPU, on the training thread.
Shorter gaps are the overhead of the operators themselves. A sample of a function of PyTorch or of a framework does not
count as the script's own code, except in ``torch.distributed``, which pickles objects in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.numbers import Number
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import Spans, intersect, subtract, union, union_of
from ddpprof.layout import in_ms
from ddpprof.model import UNKNOWN, Mark, Rank, Trace
from ddpprof.model.backends import is_accelerator
from ddpprof.topics.layer_collectives import collectives_in_backward
from ddpprof.topics.steps.breakdown import split_step
from ddpprof.topics.steps.overlap import marked_spans

_SHORTEST_GAP_NS = 500_000
_MUCH = 0.02
"""a rule reports the script's code if no operator runs during at least this share of the step"""
_FAR_ABOVE = 4
"""a line is reported for a single step if its time in that step is at least this many times its median time"""
_MOST_LINES = 3
_WORTH_NAMING = 0.1
"""a finding names a line if the line takes at least this share of the time of all lines"""


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the script, and the time per step that its own Python code takes."""

    line: Annotated[str, Number("line of the script, as `file:line in function`")]
    idle_ns: Annotated[int, Number("time in which no operator runs")]
    data_ns: Annotated[int, Number("time in which training waits for data")]
    backward_ns: Annotated[int, Number("time during which autograd runs the line in backward passes")] = 0
    outside_ns: Annotated[
        int, Number("time of the operators that the line calls outside forward, loss, backward and optimizer")
    ] = 0

    @property
    def short(self) -> str:
        """`line` without the folder of the file."""
        return self.line.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class RankCode:
    """The lines of one rank."""

    rank: int
    num_steps: int
    lines: tuple[CodeLine, ...]
    longest: CodeLine | None = None
    """line that took longest in any single step, with its times in that step; given only if its median time is far
    shorter
    """

    @property
    def idle_ns(self) -> int:
        return sum(one.idle_ns for one in self.lines)

    @property
    def backward_ns(self) -> int:
        return sum(one.backward_ns for one in self.lines)

    @property
    def outside_ns(self) -> int:
        return sum(one.outside_ns for one in self.lines)


def measure_code(rank: Rank, steps: Sequence[int]) -> RankCode | None:
    """Measure the steps with these indices; return ``None`` if no samples were recorded in them."""
    trace, samples = rank.trace, rank.record.code_samples if rank.record is not None else None
    if trace is None or trace.epoch_ns is None or samples is None:
        return None
    if len(samples.places) != len(samples.ends_us) or len(samples.lines) != len(samples.is_in_framework):
        return None
    if samples.is_in_backward and len(samples.is_in_backward) != len(samples.lines):
        return None
    found = [(step, split) for step in steps if (split := split_step(trace, step)) is not None]
    if not found or not samples.places:
        return None
    splits = [split for _, split in found]
    ends_ns = samples.began_ns - trace.epoch_ns + 1000 * np.array(samples.ends_us, np.int64)
    starts_ns = np.concatenate(([samples.began_ns - trace.epoch_ns], ends_ns[:-1]))
    places = np.array(samples.places, np.int64)
    num_lines = len(samples.lines)
    is_known = (places >= 0) & (places < num_lines)
    is_own = ~np.array(samples.is_in_framework, bool)
    is_in_backward = np.array(samples.is_in_backward or np.zeros(num_lines), bool)

    def by_line(spans: Spans) -> NDArray[np.float64]:
        """Return for how long the samples of each line overlap with the spans, in ns, shape (lines,)."""
        overlap = spans.within(starts_ns, ends_ns)[is_known]
        return np.bincount(places[is_known], overlap, minlength=num_lines).astype(np.float64)

    def launched_by_line(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the duration in ns of the kernels that each line launches, shape (lines,)."""
        compute = trace.compute
        sample = np.searchsorted(ends_ns, compute.launched_ns[rows], side="right")
        rows, sample = rows[sample < len(places)], sample[sample < len(places)]
        by = np.where(is_known, places, num_lines)[sample]
        took = compute.end_ns[rows] - compute.start_ns[rows]
        return np.bincount(by, took, minlength=num_lines + 1)[:num_lines].astype(np.float64)

    def outside_by_line(step: int, idle: Spans) -> NDArray[np.float64]:
        outside = _outside_passes(trace, step)
        if trace.device != "cpu":
            return launched_by_line(_kernels_launched_in(trace, step, outside))
        in_gaps = np.where(is_own, by_line(intersect(outside, _long(idle))), 0)
        return by_line(outside) - in_gaps

    idle = [by_line(_long(split.idle)) for split in splits]
    data = [by_line(split.data) for split in splits]
    idle_ns, data_ns, most_ns = np.median(idle, axis=0), np.median(data, axis=0), np.max(idle, axis=0)
    whole = [by_line(_without_collectives(rank, trace, step)) for step in steps]
    backward_ns = np.where(is_in_backward, np.median(whole, axis=0), 0)
    outside_ns = np.where(
        is_in_backward, 0, np.median([outside_by_line(step, split.idle) for step, split in found], axis=0)
    )
    own = np.flatnonzero(is_own & ~is_in_backward).tolist()
    lines = [
        CodeLine(
            line,
            int(idle_ns[index]) if index in own else 0,
            int(data_ns[index]) if index in own else 0,
            int(backward_ns[index]),
            int(outside_ns[index]),
        )
        for index, line in enumerate(samples.lines)
    ]
    lines.sort(key=lambda one: -max(one.idle_ns, one.data_ns, one.backward_ns, one.outside_ns))
    rare = [index for index in own if most_ns[index] >= _FAR_ABOVE * max(idle_ns[index], _SHORTEST_GAP_NS)]
    top = max(rare, key=lambda index: most_ns[index], default=None)
    return RankCode(
        rank.rank,
        len(splits),
        tuple(one for one in lines if one.idle_ns or one.data_ns or one.backward_ns or one.outside_ns),
        None if top is None else CodeLine(samples.lines[top], int(most_ns[top]), 0),
    )


def _without_collectives(rank: Rank, trace: Trace, step: int) -> Spans:
    """Return the spans of the step on the host during which the host does not wait for collectives of layers."""
    span = trace.steps[step]
    whole = Spans(np.array([span.start_ns]), np.array([span.end_ns]))
    if rank.record is None or is_accelerator(rank.record.device):
        return whole
    return subtract(whole, collectives_in_backward(trace, step))


def _outside_passes(trace: Trace, step: int) -> Spans:
    """Return the spans of the step in which the host runs none of the passes; none if it has no DDP forward pass."""
    host, span = trace.host_spans, trace.steps[step]
    in_step = (host.start_ns >= span.start_ns) & (host.start_ns < span.end_ns)
    forwards, backwards = (np.flatnonzero(in_step & (host.mark == mark)) for mark in (Mark.FORWARD, Mark.BACKWARD))
    if not len(forwards):
        return Spans(np.empty(0, np.int64), np.empty(0, np.int64))
    begins = np.sort(host.start_ns[forwards])
    ends = np.maximum.accumulate(np.sort(host.end_ns[forwards]))
    after = np.searchsorted(begins, host.start_ns[backwards], side="right") - 1
    np.maximum.at(ends, after[after >= 0], host.end_ns[backwards][after >= 0])
    left = subtract(Spans(np.array([span.start_ns]), np.array([span.end_ns])), union(begins, ends))
    for mark in (Mark.OPTIMIZER, Mark.DATA):
        left = subtract(left, marked_spans(trace, mark))
    return subtract(left, union_of(trace.collectives)) if trace.device == "cpu" else left


def _kernels_launched_in(trace: Trace, step: int, outside: Spans) -> NDArray[np.int64]:
    """Return the rows of the step's kernels that the host launches in these spans."""
    compute = trace.compute
    rows = np.flatnonzero((compute.step == step) & (compute.launched_ns != UNKNOWN))
    return rows[outside.contains(compute.launched_ns[rows])]


def _long(idle: Spans) -> Spans:
    is_long = idle.end_ns - idle.start_ns >= _SHORTEST_GAP_NS
    return Spans(idle.start_ns[is_long], idle.end_ns[is_long])


def script_code(ranks: Sequence[RankCode], view: View) -> Iterator[Finding]:
    """Report Python code of the script that takes much of the step on every rank."""
    least = min(ranks, key=lambda one: one.idle_ns)
    if not view.step_ns or least.idle_ns < _MUCH * view.step_ns:
        return
    named = [one for one in least.lines if one.idle_ns >= _WORTH_NAMING * least.idle_ns][:_MOST_LINES]
    most = max(least.lines, key=lambda one: one.idle_ns)
    meanwhile = "no operator runs" if view.device == "cpu" else "the accelerator is idle"
    yield Finding(
        "script-code",
        f"The script's own Python code takes {in_ms(least.idle_ns)} per step, mostly at {most.short}",
        f"{'; '.join(f'{one.short}: {in_ms(one.idle_ns)}' for one in named)}; {meanwhile} during this time, as sampled "
        f"in {least.num_steps} steps of rank {least.rank}",
        "Run this code less often, for example every 100 steps, or in DataLoader workers. Replace tolist(), pickled "
        "objects (all_gather_object) and loops over elements with tensor operations.",
        least.idle_ns,
        subject={"line": most.line},
        numbers=only_known(script_ns=least.idle_ns, num_steps=least.num_steps),
    )


def code_in_backward(ranks: Sequence[RankCode], view: View) -> Iterator[Finding]:
    """Report code of the script that autograd runs in the backward pass: hooks, or checkpointed forwards."""
    least = min(ranks, key=lambda one: one.backward_ns)
    if not view.step_ns or least.backward_ns < _MUCH_IN_BACKWARD * view.step_ns:
        return
    of_backward = sorted(least.lines, key=lambda one: -one.backward_ns)
    named = [one for one in of_backward if one.backward_ns >= _WORTH_NAMING * least.backward_ns][:_MOST_LINES]
    yield Finding(
        "code-in-backward",
        f"Code of the script takes {in_ms(least.backward_ns)} of the backward pass, mostly at {of_backward[0].short}",
        f"{'; '.join(f'{one.short}: {in_ms(one.backward_ns)}' for one in named)}, including the operators that it "
        f"calls, as sampled in {least.num_steps} steps of rank {least.rank}",
        "If these are hooks, for example for logging gradients, run them only every 100 steps. If activation "
        "checkpointing runs the forward again, checkpoint fewer layers or none, as far as memory allows. The "
        "backward() of a custom autograd.Function cannot be left out.",
        least.backward_ns,
        may_be_meant=True,
        subject={"line": of_backward[0].line},
        numbers=only_known(backward_ns=least.backward_ns, num_steps=least.num_steps),
    )


_MUCH_IN_BACKWARD = 0.05
"""code that autograd runs is reported if it takes at least this share of the step"""


def code_outside_passes(ranks: Sequence[RankCode], view: View) -> Iterator[Finding]:
    """Report operators that the script calls outside forward, loss, backward and optimizer, as for averaged weights."""
    least = min(ranks, key=lambda one: one.outside_ns)
    if not view.step_ns or least.outside_ns < _MUCH_OUTSIDE * view.step_ns:
        return
    of_outside = sorted(least.lines, key=lambda one: -one.outside_ns)
    named = [one for one in of_outside if one.outside_ns >= _WORTH_NAMING * least.outside_ns][:_MOST_LINES]
    yield Finding(
        "code-outside-passes",
        f"Operators outside forward, backward and optimizer take {in_ms(least.outside_ns)} per step, mostly at "
        f"{of_outside[0].short}",
        f"{'; '.join(f'{one.short}: {in_ms(one.outside_ns)}' for one in named)}, as sampled in {least.num_steps} steps "
        f"of rank {least.rank}",
        "If this work is not needed in every step, run it less often. Replace loops over parameters with operators on "
        "lists of tensors: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn() averages weights, and "
        "torch.nn.utils.get_total_norm computes norms. Prepare batches in DataLoader workers.",
        least.outside_ns,
        may_be_meant=True,
        subject={"line": of_outside[0].line},
        numbers=only_known(outside_ns=least.outside_ns, num_steps=least.num_steps),
    )


_MUCH_OUTSIDE = 0.05
"""operators outside forward, loss, backward and optimizer are reported if they take at least this share of the step"""


def slowest_line_of(rank: int, view: View) -> tuple[str, int] | None:
    """Return the line that takes the most extra time on this rank compared with all others, and this time in ns."""
    ranks = view[SCRIPT_CODE] or ()
    own = next((one for one in ranks if one.rank == rank), None)
    others = [{line.line: line.idle_ns for line in one.lines if line.idle_ns} for one in ranks if one.rank != rank]
    if own is None or not others:
        return None
    idle = [one for one in own.lines if one.idle_ns]
    more = {one.short: one.idle_ns - max(lines.get(one.line, 0) for lines in others) for one in idle}
    return max(more.items(), key=lambda one: one[1], default=None)


def longest_line(view: View) -> CodeLine | None:
    """Return the line that takes the longest time in a single step, among lines that take far less in most steps."""
    found = [one.longest for one in view[SCRIPT_CODE] or () if one.longest is not None]
    return max(found, key=lambda one: one.idle_ns, default=None)


def slowest_line_of_data(view: View) -> CodeLine | None:
    """Return the line with the longest time in which training waits for data."""
    return max(
        (line for one in view[SCRIPT_CODE] or () for line in one.lines), key=lambda one: one.data_ns, default=None
    )


SCRIPT_CODE: Topic[RankCode, tuple[RankCode, ...]] = Topic(
    "script_code",
    rules=(script_code, code_in_backward, code_outside_passes),
    of_rank=lambda rank, steps, _modules: measure_code(rank, steps),
    rank_type=RankCode,
    of_ranks=tuple,
)
