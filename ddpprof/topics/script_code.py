r"""Find the lines of the script that take time in a step because of their own Python code.

    idle of a line = |samples of the line ∩ idle gaps of at least 0.5 ms|, median over steps
    data of a line = |samples of the line ∩ waiting for data|, median over steps
    backward of a line = |samples of the line in a backward pass ∩ step \ collectives of layers|, median over steps

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
from ddpprof.intervals import Spans, subtract
from ddpprof.layout import in_ms
from ddpprof.model import Rank, Trace
from ddpprof.model.backends import is_accelerator
from ddpprof.topics.layer_collectives import collectives_in_backward
from ddpprof.topics.steps.breakdown import split_step

_SHORTEST_GAP_NS = 500_000
_MUCH = 0.02
"""minimum share of the step"""
_FAR_ABOVE = 4
"""minimum ratio of a line's longest time in a step to its median time"""
_MOST_LINES = 3
_WORTH_NAMING = 0.1
"""minimum share of the time of all lines"""


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the script, and the time per step that its own Python code takes."""

    line: Annotated[str, Number("line of the script, as `file:line in function`")]
    idle_ns: Annotated[int, Number("time in which no operator runs")]
    data_ns: Annotated[int, Number("time in which training waits for data")]
    backward_ns: Annotated[int, Number("time during which autograd runs the line in backward passes")] = 0

    @property
    def short(self) -> str:
        """The line without the folder of its file."""
        return self.line.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class RankCode:
    """The lines of one rank."""

    rank: int
    num_steps: int
    lines: tuple[CodeLine, ...]
    longest: CodeLine | None = None
    """line that takes the longest time in one step, with its times in that step, if its median time is far shorter"""

    @property
    def idle_ns(self) -> int:
        return sum(one.idle_ns for one in self.lines)

    @property
    def backward_ns(self) -> int:
        return sum(one.backward_ns for one in self.lines)


def measure_code(rank: Rank, steps: Sequence[int]) -> RankCode | None:
    """Measure the steps with these indices; return ``None`` if no samples were recorded in them."""
    trace, samples = rank.trace, rank.record.code_samples if rank.record is not None else None
    if trace is None or trace.epoch_ns is None or samples is None:
        return None
    if len(samples.places) != len(samples.ends_us) or len(samples.lines) != len(samples.is_in_framework):
        return None
    if samples.is_in_backward and len(samples.is_in_backward) != len(samples.lines):
        return None
    splits = [split for step in steps if (split := split_step(trace, step)) is not None]
    if not splits or not samples.places:
        return None
    ends_ns = samples.began_ns - trace.epoch_ns + 1000 * np.array(samples.ends_us, np.int64)
    starts_ns = np.concatenate(([samples.began_ns - trace.epoch_ns], ends_ns[:-1]))
    places = np.array(samples.places, np.int64)
    is_known = (places >= 0) & (places < len(samples.lines))

    def by_line(spans: Spans) -> NDArray[np.float64]:
        """Return for how long the samples of each line overlap with the spans, in ns, shape (lines,)."""
        overlap = spans.within(starts_ns, ends_ns)[is_known]
        return np.bincount(places[is_known], overlap, minlength=len(samples.lines)).astype(np.float64)

    idle = [by_line(_long(split.idle)) for split in splits]
    data = [by_line(split.data) for split in splits]
    idle_ns, data_ns, most_ns = np.median(idle, axis=0), np.median(data, axis=0), np.max(idle, axis=0)
    is_own = ~np.array(samples.is_in_framework, bool)
    is_in_backward = np.array(samples.is_in_backward or np.zeros(len(is_own)), bool)
    whole = [by_line(_without_collectives(rank, trace, step)) for step in steps]
    backward_ns = np.where(is_in_backward, np.median(whole, axis=0), 0)
    own = np.flatnonzero(is_own & ~is_in_backward).tolist()
    lines = [CodeLine(samples.lines[index], int(idle_ns[index]), int(data_ns[index])) for index in own]
    in_backward = np.flatnonzero(is_in_backward).tolist()
    lines += [CodeLine(samples.lines[index], 0, 0, int(backward_ns[index])) for index in in_backward]
    lines.sort(key=lambda one: -max(one.idle_ns, one.data_ns, one.backward_ns))
    rare = [index for index in own if most_ns[index] >= _FAR_ABOVE * max(idle_ns[index], _SHORTEST_GAP_NS)]
    top = max(rare, key=lambda index: most_ns[index], default=None)
    return RankCode(
        rank.rank,
        len(splits),
        tuple(one for one in lines if one.idle_ns or one.data_ns or one.backward_ns),
        None if top is None else CodeLine(samples.lines[top], int(most_ns[top]), 0),
    )


def _without_collectives(rank: Rank, trace: Trace, step: int) -> Spans:
    """Return the spans of the step on the host during which the host does not wait for collectives of layers."""
    span = trace.steps[step]
    whole = Spans(np.array([span.start_ns]), np.array([span.end_ns]))
    if rank.record is None or is_accelerator(rank.record.device):
        return whole
    return subtract(whole, collectives_in_backward(trace, step))


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
"""minimum share of the step"""


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
    rules=(script_code, code_in_backward),
    of_rank=lambda rank, steps, _modules: measure_code(rank, steps),
    rank_type=RankCode,
    of_ranks=tuple,
)
