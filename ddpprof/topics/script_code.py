r"""Find the lines of the script that take time in a step, above all because of their own Python code.

    idle of a line = |samples of the line ∩ idle gaps of at least 0.5 ms|, median over steps
    data of a line = |samples of the line ∩ waiting for data|, median over steps
    backward of a line = |samples of the line in a backward pass ∩ step \ collectives of layers|, median over steps
    outside of a line = |samples of the line ∩ time outside the passes|, median over steps
    loss of a line = |samples of the line's own code ∩ time between forward and backward|, median over steps
    comm of a line = |samples of the line ∩ communication outside forward and backward|, median over steps, on CPU
    metric of a line = |samples of the line in a library for metrics ∩ step \ exposed communication|, median over steps

The time outside the passes is the step without these times: from the start of each DDP forward pass to the end of its
backward pass; the optimizer; waiting for data; communication; synchronous RPCs; and, for lines of the script's own
code, idle gaps. On an accelerator, *outside* and *loss* are instead the duration of the kernels that a line launches at
these times, and *metric* is the duration of the kernels that it launches plus the idle gaps. Code inside a module that
is not part of the DDP module counts for the line that calls the module. If *comm* of a line is longer than its
*outside* or *loss*, that value counts as 0: the line calls collectives, which have rules of their own.

An idle gap is a time in which no operator runs on the accelerator or, in training on CPU, on the training thread, and
in which no synchronous RPC runs. Shorter gaps are the overhead of the operators themselves. A sample of a function of
PyTorch or of a framework does not count as the script's own code, except in ``torch.distributed``, which pickles
objects in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.numbers import Number
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.intervals import Spans, intersect, merge, subtract, union, union_of
from ddpprof.layout import Section, clean, count, in_ms, ms, percent, table_of
from ddpprof.model import UNKNOWN, CodeSamples, Mark, Rank, Trace
from ddpprof.model.backends import is_accelerator
from ddpprof.topics.buckets.steps import calls_in_backward
from ddpprof.topics.rpc import spans_of
from ddpprof.topics.steps.breakdown import StepSplit, split_step, step_window
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
        int, Number("time of the operators that the line calls outside the passes, the loss and the optimizer")
    ] = 0
    own_outside_ns: Annotated[int, Number("part of `outside_ns` that is not spent in PyTorch functions")] = 0
    loss_ns: Annotated[
        int, Number("time of the operators that the line's own code calls between the forward and the backward pass")
    ] = 0

    comm_ns: Annotated[
        int, Number("on CPU: time in which the line calls collectives outside both passes, and waits for them")
    ] = 0

    metric_ns: Annotated[int, Number("time in which the line computes metrics with a library such as torchmetrics")] = 0

    @property
    def times_ns(self) -> tuple[int, ...]:
        return self.idle_ns, self.data_ns, self.backward_ns, self.outside_ns, self.loss_ns, self.metric_ns

    @property
    def longest_ns(self) -> int:
        """The largest of the line's times."""
        return max(self.times_ns)

    @property
    def short(self) -> str:
        return short_line(self.line)


def short_line(line: str) -> str:
    """Return the file name, line number and function of a line, without the file's folder."""
    return line.rpartition("/")[2]


_NO_TIMES = CodeLine("", 0, 0).times_ns


@dataclass(frozen=True, slots=True)
class RankCode:
    """Lines of the script that ran on one rank."""

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

    @property
    def loss_ns(self) -> int:
        return sum(one.loss_ns for one in self.lines)

    @property
    def comm_ns(self) -> int:
        return sum(one.comm_ns for one in self.lines)

    @property
    def metric_ns(self) -> int:
        return sum(one.metric_ns for one in self.lines)


def measure_code(rank: Rank, steps: Sequence[int]) -> RankCode | None:
    """Measure the steps with these indices; return ``None`` if no samples were recorded in them."""
    trace, samples = rank.trace, _usable_samples(rank)
    if trace is None or trace.epoch_ns is None or samples is None:
        return None
    found = {step: split for step in steps if (split := split_step(trace, step)) is not None}
    if not found:
        return None
    sampled = _Sampled(samples, trace.epoch_ns)
    calls = _remote_calls(rank, trace)
    idle = [sampled.times(_long(subtract(split.idle, calls)), sampled.is_own) for split in found.values()]
    data = [sampled.times(split.data, sampled.is_own) for split in found.values()]
    whole = [sampled.times(_without_collectives(rank, trace, step), sampled.is_in_backward) for step in steps]
    outside, own_outside, loss, in_comm = [], [], [], []
    comm, is_library = _communication(trace), sampled.is_library
    every = np.ones(len(samples.lines), bool)
    optimizers, in_forward = _optimizers(rank, trace), np.zeros(len(sampled.callers))
    waits = merge(merge(merge(optimizers, marked_spans(trace, Mark.DATA)), comm), calls)
    for step, split in found.items():
        passes = _passes(trace, step)
        in_forward += sampled.times(union(passes.begins_ns, passes.ends_ns), every, of_callers=True)
        spans, between = _outside(trace, step, passes), _between(trace, passes)
        comm_here = intersect(comm, merge(spans, between))
        spans, between = subtract(spans, waits), subtract(between, waits)
        if trace.device == "cpu":
            gaps = _long(split.idle)
            own = sampled.times(subtract(spans, gaps), sampled.is_own, of_callers=True)
            outside.append(own + sampled.times(spans, is_library, of_callers=True))
            loss.append(sampled.times(subtract(between, gaps), sampled.is_own, of_callers=True))
            in_comm.append(sampled.times(comm_here, sampled.is_own | is_library, of_callers=True))
            for column in (own, outside[-1], loss[-1]):
                column[in_comm[-1] > column] = 0  # the line calls collectives, which have rules of their own
        else:
            own = sampled.launched(trace, step, spans, sampled.is_own)
            outside.append(own + sampled.launched(trace, step, spans, is_library))
            loss.append(sampled.launched(trace, step, between, sampled.is_own))
            in_comm.append(np.zeros_like(own))
        own_outside.append(own)
    in_optimizers = sampled.times(optimizers, every, of_callers=True)
    calls_loop = (in_forward > in_forward.sum() / 2) & (in_optimizers > in_optimizers.sum() / 2)
    for column in (*outside, *own_outside):
        column[calls_loop] = 0  # for example ``trainer.fit()``
    lines: dict[str, CodeLine] = {}
    metric = [_metric_times(sampled, trace, step, split) for step, split in found.items()]
    of_lines = {"idle_ns": idle, "data_ns": data, "backward_ns": whole, "metric_ns": metric}
    of_callers = {"outside_ns": outside, "own_outside_ns": own_outside, "loss_ns": loss, "comm_ns": in_comm}
    for names, measured in ((sampled.lines, of_lines), (sampled.callers, of_callers)):
        medians = {name: np.median(times, axis=0).astype(np.int64).tolist() for name, times in measured.items()}
        for index, line in enumerate(names):
            one = lines.get(line, CodeLine(line, 0, 0))
            lines[line] = replace(one, **{name: values[index] for name, values in medians.items()})
    known = sorted((one for one in lines.values() if one.longest_ns or one.comm_ns), key=lambda one: -one.longest_ns)
    return RankCode(rank.rank, len(found), tuple(known), _rare(sampled, idle))


def _metric_times(sampled: _Sampled, trace: Trace, step: int, split: StepSplit) -> NDArray[np.float64]:
    """Return for how many ns of the step each line computes metrics, shape (lines,)."""
    window = step_window(trace, step)
    if window is None or not sampled.computes_metrics.any():
        return np.zeros(len(sampled.lines))
    if trace.device == "cpu":
        return sampled.times(subtract(window, split.exposed), sampled.computes_metrics)
    whole = Spans(np.array([trace.steps[step].start_ns]), np.array([trace.steps[step].end_ns]))
    launched = sampled.launched(trace, step, whole, sampled.computes_metrics, of_callers=False)
    return launched + sampled.times(_long(split.idle), sampled.computes_metrics)


def line_during(rank: Rank, spans: Spans) -> str | None:
    """Return the line of the script that the host runs for most of these times; ``None`` if it is unknown."""
    trace, samples = rank.trace, _usable_samples(rank)
    if trace is None or trace.epoch_ns is None or samples is None:
        return None
    sampled = _Sampled(samples, trace.epoch_ns)
    times = sampled.times(spans, sampled.is_own | sampled.is_library)
    return sampled.lines[int(times.argmax())] if times.any() else None


def _optimizers(rank: Rank, trace: Trace) -> Spans:
    """Return the spans of the optimizers, excluding the closures that they call if closures are recorded."""
    recorded = [one for step in rank.training_steps for one in step.optimizers]
    if not recorded or trace.epoch_ns is None:
        return marked_spans(trace, Mark.OPTIMIZER)
    times = np.array(recorded, np.int64) - trace.epoch_ns
    return union(times[:, 0], times[:, 1])


def _usable_samples(rank: Rank) -> CodeSamples | None:
    """Return the samples of a rank; ``None`` if there are none, or if their columns do not fit together."""
    samples = rank.record.code_samples if rank.record is not None else None
    return samples if samples is not None and samples.places and _fits(samples) else None


def _fits(samples: CodeSamples) -> bool:
    """Return False if the columns of the samples do not have the same length, as in a damaged file."""
    optional = (samples.is_in_backward, samples.callers, samples.runs_backward, samples.computes_metrics)
    is_table = len(samples.lines) == len(samples.is_in_framework)
    is_table &= all(len(column) in (0, len(samples.lines)) for column in optional)
    return is_table and len(samples.places) == len(samples.ends_us)


class _Sampled:
    """Samples on the clock of a trace. Times are added up by distinct line, or by the caller of a line."""

    def __init__(self, samples: CodeSamples, epoch_ns: int) -> None:
        num_places = len(samples.lines)
        self.lines = tuple(dict.fromkeys(samples.lines))
        callers = [caller or line for line, caller in zip(samples.lines, samples.callers or samples.lines, strict=True)]
        self.callers = tuple(dict.fromkeys(callers))
        self.is_in_backward = np.array(samples.is_in_backward or np.zeros(num_places), bool)
        is_of_step = ~self.is_in_backward & ~np.array(samples.runs_backward or np.zeros(num_places), bool)
        self.computes_metrics = is_of_step & np.array(samples.computes_metrics or np.zeros(num_places), bool)
        is_of_step &= ~self.computes_metrics
        self.is_own = ~np.array(samples.is_in_framework, bool) & is_of_step
        self.is_library = is_of_step & ~self.is_own
        """masks of places, shape (places,): places that autograd runs; among the rest, places that compute metrics,
        places in the script's own code, and places in other libraries that the script calls, except for backward passes
        """
        self._line_of = np.array([self.lines.index(line) for line in samples.lines], np.int64)
        self._caller_of = np.array([self.callers.index(caller) for caller in callers], np.int64)
        began_ns = samples.began_ns - epoch_ns
        ends_ns = began_ns + 1000 * np.array(samples.ends_us, np.int64)
        places = np.array(samples.places, np.int64)
        is_known = (places >= 0) & (places < num_places)
        self._starts_ns = np.concatenate(([began_ns], ends_ns[:-1]))[is_known]
        self._ends_ns, self._places = ends_ns[is_known], places[is_known]

    def times(self, spans: Spans, mask: NDArray[np.bool_], *, of_callers: bool = False) -> NDArray[np.float64]:
        """Return for how many ns the samples of the masked places overlap the spans. Shape: (lines or callers,)."""
        overlap = spans.within(self._starts_ns, self._ends_ns) * mask[self._places]
        group, names = (self._caller_of, self.callers) if of_callers else (self._line_of, self.lines)
        return np.bincount(group[self._places], overlap, minlength=len(names)).astype(np.float64)

    def launched(
        self, trace: Trace, step: int, spans: Spans, mask: NDArray[np.bool_], *, of_callers: bool = True
    ) -> NDArray[np.float64]:
        """Return the duration of the kernels of a step that the masked places launch in the spans, in ns.

        Shape: (lines or callers,).
        """
        compute = trace.compute
        rows = np.flatnonzero((compute.step == step) & (compute.launched_ns != UNKNOWN))
        rows = rows[spans.contains(compute.launched_ns[rows])]
        sample = np.searchsorted(self._ends_ns, compute.launched_ns[rows], side="right")
        in_one = sample < len(self._ends_ns)
        in_one[in_one] = self._starts_ns[sample[in_one]] <= compute.launched_ns[rows[in_one]]
        rows, places = rows[in_one], self._places[sample[in_one]]
        took = (compute.end_ns[rows] - compute.start_ns[rows]) * mask[places]
        group, names = (self._caller_of, self.callers) if of_callers else (self._line_of, self.lines)
        return np.bincount(group[places], took, minlength=len(names)).astype(np.float64)


def _rare(sampled: _Sampled, idle: Sequence[NDArray[np.float64]]) -> CodeLine | None:
    """Return the line that takes longest in a single step, among lines that take far less in most steps."""
    usual_ns, most_ns = np.median(idle, axis=0), np.max(idle, axis=0)
    rare = np.flatnonzero(most_ns >= _FAR_ABOVE * np.maximum(usual_ns, _SHORTEST_GAP_NS)).tolist()
    top = max(rare, key=lambda index: most_ns[index], default=None)
    return None if top is None else CodeLine(sampled.lines[top], int(most_ns[top]), 0)


def _without_collectives(rank: Rank, trace: Trace, step: int) -> Spans:
    """Return the spans of the step on the host during which the host does not wait for collectives of layers."""
    span = trace.steps[step]
    whole = Spans(np.array([span.start_ns]), np.array([span.end_ns]))
    if rank.record is None or is_accelerator(rank.record.device):
        return whole
    return subtract(whole, union_of(trace.collectives, calls_in_backward(trace, step)))


@dataclass(frozen=True, slots=True)
class _Passes:
    """The start and end times (ns) of a step's DDP forward passes, and the host spans (rows) of its backward nodes."""

    begins_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    backward_rows: NDArray[np.int64]


def _passes(trace: Trace, step: int) -> _Passes:
    host, span = trace.host_spans, trace.steps[step]
    in_step = (host.start_ns >= span.start_ns) & (host.start_ns < span.end_ns)
    forwards, backwards = (np.flatnonzero(in_step & (host.mark == mark)) for mark in (Mark.FORWARD, Mark.BACKWARD))
    return _Passes(np.sort(host.start_ns[forwards]), np.maximum.accumulate(np.sort(host.end_ns[forwards])), backwards)


def _outside(trace: Trace, step: int, passes: _Passes) -> Spans:
    """Return the spans of the step in which the host runs none of the passes; none if it has no DDP forward pass."""
    host, span, rows = trace.host_spans, trace.steps[step], passes.backward_rows
    if not len(passes.begins_ns):
        return Spans(passes.begins_ns, passes.ends_ns)
    ends_ns, forward = passes.ends_ns.copy(), np.searchsorted(passes.begins_ns, host.start_ns[rows], side="right") - 1
    np.maximum.at(ends_ns, forward[forward >= 0], host.end_ns[rows][forward >= 0])
    whole = Spans(np.array([span.start_ns]), np.array([span.end_ns]))
    return subtract(whole, union(passes.begins_ns, ends_ns))


def _between(trace: Trace, passes: _Passes) -> Spans:
    """Return the spans from the end of each forward pass to the beginning of its backward pass."""
    starts_ns = np.sort(trace.host_spans.start_ns[passes.backward_rows])
    following_ns = np.append(passes.begins_ns[1:], np.iinfo(np.int64).max)
    at = np.searchsorted(starts_ns, passes.ends_ns)
    has_backward = at < len(starts_ns)
    has_backward[has_backward] = starts_ns[at[has_backward]] < following_ns[has_backward]
    return union(passes.ends_ns[has_backward], starts_ns[at[has_backward]])


def _communication(trace: Trace) -> Spans:
    """Return the spans from the launch of each collective to its end on CPU; empty on an accelerator."""
    comm = trace.collectives
    launched_ns = np.where(comm.launched_ns == UNKNOWN, comm.start_ns, np.minimum(comm.launched_ns, comm.start_ns))
    is_on_host = np.full(len(comm), trace.device == "cpu")
    return union(launched_ns[is_on_host], comm.end_ns[is_on_host])


def _remote_calls(rank: Rank, trace: Trace) -> Spans:
    """Return the spans of synchronous RPCs, which have a topic of their own."""
    recorded = (call for step in rank.training_steps for call in step.rpc if call.kind == "sync")
    return spans_of(recorded, trace.epoch_ns or 0)


def _long(idle: Spans) -> Spans:
    is_long = idle.end_ns - idle.start_ns >= _SHORTEST_GAP_NS
    return Spans(idle.start_ns[is_long], idle.end_ns[is_long])


@dataclass(frozen=True, slots=True)
class _Taken:
    """Time that lines of the script take in a step, on the rank where it is shortest."""

    rank: RankCode
    took_ns: int
    gain_ns: int
    """`took_ns` without the time that the profiler adds"""
    most: CodeLine
    """line that takes the longest time"""
    lines: str
    """the lines that take much of the time, with their times"""


def _taken(
    ranks: Sequence[RankCode], view: View, time_of: Callable[[RankCode | CodeLine], int], share: float
) -> _Taken | None:
    """Return the time that lines take on every rank; ``None`` if it is less than this share of the step."""
    least = min(ranks, key=time_of)
    took_ns = time_of(least)
    if not view.step_ns or took_ns < share * view.step_ns or not _is_sampled_often(least, took_ns):
        return None
    lines = sorted(least.lines, key=time_of, reverse=True)
    named = [one for one in lines if time_of(one) >= _WORTH_NAMING * took_ns][:_MOST_LINES]
    said = "; ".join(f"{one.short}: {in_ms(time_of(one))}" for one in named)
    return _Taken(least, took_ns, view.without_profiler(took_ns), lines[0], said)


def _is_sampled_often(rank: RankCode, took_ns: int) -> bool:
    """Return False if only a few samples, perhaps by chance, show that lines take `took_ns` per step."""
    return took_ns * rank.num_steps >= _LEAST_SAMPLED_NS


_LEAST_SAMPLED_NS = 10_000_000
"""least total time of reported lines in the profiled steps: five samples, of which there is one every 2 ms"""


def _sampled_in(rank: RankCode, view: View) -> str:
    """Return a clause about the steps in which the lines were sampled, and how much longer the profiler makes them."""
    longer = f", which take {view.profiled_ratio:.2f} × as long as other steps" if view.profiled_ratio > 1 else ""
    return f"sampled in {count(rank.num_steps, 'profiled step')} of rank {rank.rank}{longer}"


def script_code(ranks: Sequence[RankCode], view: View) -> Iterator[Finding]:
    """Report Python code of the script that takes much of the step on every rank.

    The profiler slows operators down, but not the code between them, so all of its time can be gained.
    """
    taken = _taken(ranks, view, lambda one: one.idle_ns, _MUCH)
    if taken is None:
        return
    meanwhile = "no operator runs" if view.device == "cpu" else "the accelerator is idle"
    yield Finding(
        "script-code",
        f"The script's own Python code takes {in_ms(taken.took_ns)} per step, mostly at {taken.most.short}",
        f"{taken.lines}; {meanwhile} during this time, as {_sampled_in(taken.rank, view)}",
        "Run this code less often, for example every 100 steps, or in DataLoader workers. Replace tolist(), pickled "
        "objects (all_gather_object) and loops over elements with tensor operations.",
        taken.took_ns,
        subject={"line": taken.most.line},
        numbers=only_known(script_ns=taken.took_ns, num_steps=taken.rank.num_steps),
    )


def code_in_backward(ranks: Sequence[RankCode], view: View) -> Iterator[Finding]:
    """Report code of the script that autograd runs in the backward pass: hooks, or checkpointed functions."""
    taken = _taken(ranks, view, lambda one: one.backward_ns, _MUCH_IN_BACKWARD)
    if taken is None:
        return
    yield Finding(
        "code-in-backward",
        f"Code of the script takes {in_ms(taken.gain_ns)} of the backward pass, mostly at {taken.most.short}",
        f"{taken.lines}, each including the operators that it calls, as {_sampled_in(taken.rank, view)}",
        "If these are hooks, for example for logging gradients, run them only every 100 steps. If activation "
        "checkpointing runs the forward pass again, checkpoint fewer layers or none, as far as memory allows. The "
        "backward() of a custom autograd.Function cannot be left out.",
        taken.gain_ns,
        may_be_meant=True,
        subject={"line": taken.most.line},
        numbers=only_known(backward_ns=taken.took_ns, num_steps=taken.rank.num_steps),
    )


_MUCH_IN_BACKWARD = 0.05
"""code that autograd runs is reported if it takes at least this share of the step"""


def code_outside_passes(ranks: Sequence[RankCode], view: View) -> Iterator[Finding]:
    """Report operators that the script calls outside model, backward pass and optimizer, as when averaging weights."""
    step_ns = view.step_ns or 0
    least = min(ranks, key=lambda one: one.outside_ns)
    has_loss = least.loss_ns >= _MUCH_OF_LOSS * step_ns
    took = {one: one.outside_ns + (one.loss_ns if has_loss else 0) for one in least.lines}
    took_ns = sum(took.values())
    own_ns = sum(one.own_outside_ns for one in least.lines)
    is_much = took_ns >= _MUCH_OUTSIDE * step_ns or own_ns >= _MUCH_OF_OWN * step_ns
    if not step_ns or not is_much or not _is_sampled_often(least, took_ns):
        return
    lines = sorted((one for one in took if took[one] >= _WORTH_NAMING * took_ns), key=lambda one: -took[one])
    named = ", ".join(f"{one.short} ({in_ms(view.without_profiler(took[one]))})" for one in lines[:_MOST_LINES])
    loss = f"; {in_ms(least.loss_ns)} of it after the forward pass, as part of the loss" if has_loss else ""
    gain_ns = view.without_profiler(took_ns)
    yield Finding(
        "code-outside-passes",
        f"Operators outside the model, the backward pass and the optimizer take {in_ms(gain_ns)} per step, "
        f"{f'mostly at {named}' if named else 'spread over many lines'}",
        f"{_sampled_in(least, view)}{loss}",
        "Run work less often if it is not needed in every step, and under torch.no_grad() if it needs no gradients. "
        "Replace loops over elements or parameters by operators on whole tensors or lists of tensors: weight_decay for "
        "penalties, torch.nn.utils.get_total_norm for norms, torch.optim.swa_utils.AveragedModel for averages.",
        gain_ns,
        may_be_meant=True,
        subject={"line": lines[0].line} if lines else {},
        numbers=only_known(outside_ns=took_ns, loss_ns=least.loss_ns if has_loss else None, num_steps=least.num_steps),
    )


_MUCH_OUTSIDE = 0.05
"""operators outside the passes are reported if they take at least this share of the step"""
_MUCH_OF_OWN = 0.03
"""like `_MUCH_OUTSIDE`, for metrics, and for operators that the script's own lines call rather than PyTorch functions
like clip_grad_norm_
"""
_MUCH_OF_LOSS = 0.1
"""operators between the forward and the backward pass are reported if the script's own lines call them for at least
this share of the step; loss functions of PyTorch do not count
"""


def metrics_in_step(ranks: Sequence[RankCode], view: View) -> Iterator[Finding]:
    """Report metrics that the script computes in every step with a library such as torchmetrics."""
    taken = _taken(ranks, view, lambda one: one.metric_ns, _MUCH_OF_OWN)
    if taken is None:
        return
    yield Finding(
        "metrics-in-step",
        f"Computing metrics takes {in_ms(taken.gain_ns)} per step, mostly at {taken.most.short}",
        f"{taken.lines}, as {_sampled_in(taken.rank, view)}",
        "Compute metrics only every N steps, or only in validation. With torchmetrics, metric.update(…) in each step "
        "and metric.compute() once per epoch are cheaper than metric(…), which also computes the metric of each batch.",
        taken.gain_ns,
        may_be_meant=True,
        subject={"line": taken.most.line},
        numbers=only_known(metric_ns=taken.took_ns, num_steps=taken.rank.num_steps),
    )


def slowest_line_of(rank: int, view: View) -> tuple[str, int] | None:
    """Return the line that takes most extra time on this rank compared with other ranks, and this time in ns."""
    ranks = view[SCRIPT_CODE] or ()
    own = next((one for one in ranks if one.rank == rank), None)
    others = [{line.line: line.times_ns for line in one.lines} for one in ranks if one.rank != rank]
    if own is None or not others:
        return None
    more = [
        (one.short, min(max(map(int.__sub__, one.times_ns, lines.get(one.line, _NO_TIMES))) for lines in others))
        for one in own.lines
    ]
    return max(more, key=lambda one: one[1], default=None)


def lines_of_collectives(view: View) -> str:
    """Return a clause that names the lines in which the script spends most of its time in collectives, on CPU."""
    least = min((one for one in view[SCRIPT_CODE] or () if one.comm_ns), key=lambda one: one.comm_ns, default=None)
    if least is None:
        return ""
    lines = sorted(least.lines, key=lambda one: -one.comm_ns)
    named = [f"{one.short} ({in_ms(one.comm_ns)})" for one in lines if one.comm_ns >= _WORTH_NAMING * least.comm_ns]
    return f"; the script waits for collectives at {', '.join(named[:_MOST_LINES])}"


def longest_line(view: View) -> CodeLine | None:
    """Return the line with the longest time in a single step, among lines that take far less time in most steps."""
    found = [one.longest for one in view[SCRIPT_CODE] or () if one.longest is not None]
    return max(found, key=lambda one: one.idle_ns, default=None)


def slowest_line_of_data(view: View) -> CodeLine | None:
    """Return the line that runs for the longest time while training waits for data."""
    return max(
        (line for one in view[SCRIPT_CODE] or () for line in one.lines), key=lambda one: one.data_ns, default=None
    )


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A line of the script, and how long it runs in a step on CPU, with the code of libraries that it calls.

    Exposed communication does not count.
    """

    line: Annotated[str, Number("line of the script, as `file:line in function`")]
    step_ns: Annotated[int, Number("time within the step during which the line, or a library that it calls, runs")]
    share: Annotated[float, Number("share of the step")]
    idle_ns: Annotated[int, Number("time of the line in which no operator runs")]
    idle_share: Annotated[float, Number("share of the step's time in which no operator runs")]

    @property
    def short(self) -> str:
        return short_line(self.line)


_MOST_SCRIPT_LINES = 10
_LEAST_SHARE = 0.05
_MOST_SHARE = 0.9
"""a line that runs for more than this share of the step without exposed communication is not listed, because it may be
the call that runs the whole training
"""


def measure_lines(rank: Rank, steps: Sequence[int]) -> tuple[ScriptLine, ...] | None:
    """Return the lines that run longest in these steps; ``None`` without samples, or on an accelerator.

    On an accelerator, samples show only what the host launches. Older records lack the lines of backward passes.
    """
    trace, samples = rank.trace, _usable_samples(rank)
    if trace is None or trace.epoch_ns is None or trace.device != "cpu" or samples is None or not samples.runs_backward:
        return None
    splits = {step: split for step in steps if (split := split_step(trace, step)) is not None}
    if not splits:
        return None
    sampled, every = _Sampled(samples, trace.epoch_ns), np.ones(len(samples.lines), bool)
    windows = {step: window for step in splits if (window := step_window(trace, step)) is not None}
    step_ns = float(np.median([window.total_ns for window in windows.values()]))
    busy = [subtract(window, splits[step].exposed) for step, window in windows.items()]
    most_ns = _MOST_SHARE * float(np.median([spans.total_ns for spans in busy]))
    ran = [sampled.times(spans, every) for spans in busy]
    idle = [sampled.times(split.idle, every) for split in splits.values()]
    idle_ns = float(np.median([split.idle.total_ns for split in splits.values()]))
    lines = [
        ScriptLine(line, int(ns), ns / step_ns, int(idle_of_line_ns), idle_of_line_ns / max(idle_ns, 1))
        for line, ns, idle_of_line_ns in zip(
            sampled.lines, np.median(ran, axis=0).tolist(), np.median(idle, axis=0).tolist(), strict=True
        )
    ]
    known = [one for one in lines if one.share >= _LEAST_SHARE and one.step_ns <= most_ns]
    return tuple(sorted(known, key=lambda one: -one.step_ns)[:_MOST_SCRIPT_LINES])


def script_lines_table(lines: Sequence[ScriptLine], _report: ReportView) -> Iterable[Section]:
    yield table_of(
        "Longest-running lines of a profiled step, including libraries that they call, excluding exposed communication",
        lines,
        {
            "line": lambda one: clean(one.short, most=80),
            "ms": lambda one: ms(one.step_ns),
            "of the step": lambda one: percent(one.share),
            "ms without operator": lambda one: ms(one.idle_ns),
        },
    )


SCRIPT_LINES: Topic[tuple[ScriptLine, ...], tuple[ScriptLine, ...]] = Topic(
    "script_lines",
    of_rank=lambda rank, steps, _modules: measure_lines(rank, steps),
    rank_type=tuple[ScriptLine, ...],
    of_ranks=lambda ranks: max(ranks, key=lambda lines: sum(one.step_ns for one in lines)),
    sections={"step": script_lines_table},
)
"""lines on the rank whose lines take the most time; the other ranks wait for this rank"""


SCRIPT_CODE: Topic[RankCode, tuple[RankCode, ...]] = Topic(
    "script_code",
    rules=(script_code, code_in_backward, code_outside_passes, metrics_in_step),
    of_rank=lambda rank, steps, _modules: measure_code(rank, steps),
    rank_type=RankCode,
    of_ranks=tuple,
)
