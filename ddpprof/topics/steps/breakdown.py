"""Divide the time of a step into eight parts that add up to the step time.

Time with computation takes precedence, and is divided by phase. Exposed communication, copies, and waiting for data
follow in this order. On an accelerator, waiting for data is the time in which the device is idle while the host waits
for data. The rest is idle (`idle.py` finds the causes). Copying buckets into ``.grad`` after the last backward node
counts as backward.

On CPU, a step is the host's ``ProfilerStep#k``. On an accelerator, it extends from its first kernel to the first kernel
of the next step, because the host runs ahead of the device. All work in this time counts, including work launched in
another step. At the edges of a trace, work may be missing: the last step ends with its last kernel, and the trace does
not contain work that was launched before the trace began and runs in the first step.

Light recording gives fewer parts:

    backward = from the end of a DDP forward pass with gradients to the next one or to the optimizer's start

This includes the loss and exposed communication. If a step uses several batches, waits for further batches also fall
into this interval. They count as data, and backward is limited to the time that forward, optimizer and data leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.numbers import Number
from ddpprof.intervals import Spans, intersect, merge, subtract, union_of
from ddpprof.model import UNKNOWN, Collectives, Mark, Phase, Step, Trace, Work
from ddpprof.model.record import RecordedStep
from ddpprof.topics.steps.overlap import marked_spans, spans_of

_BUSY_BEFORE = 0.01
"""if a step's first kernel is delayed by more than this share of the step, the device was busy with earlier work"""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The parts of one step, in ns. They add up to the step."""

    forward_ns: Annotated[
        int, Number("computation of the forward pass; the eight parts add up to the step", metric="forward")
    ]
    backward_ns: Annotated[int, Number("computation of the backward pass", metric="backward")]
    exposed_comm_ns: Annotated[int, Number("communication without concurrent computation")]
    optimizer_ns: Annotated[int, Number("computation of the optimizer", metric="optimizer")]
    data_ns: Annotated[int, Number("waiting for data", metric="data")]
    other_ns: Annotated[int, Number("computation outside all phases", metric="other")]
    copy_ns: Annotated[int, Number("copies without concurrent computation or communication", metric="copies")]
    idle_ns: Annotated[int, Number("time in which the device is idle", metric="idle")]

    @property
    def step_ns(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Spans of each part of a step. The parts do not overlap."""

    parts: tuple[tuple[Spans, ...], ...]
    """spans of each part, in the order of the fields of `Breakdown`"""
    is_whole: bool = True
    """False if the trace starts or ends in the middle of the step; its duration then cannot be compared with that of
    other steps
    """

    @property
    def breakdown(self) -> Breakdown:
        return Breakdown(*(sum(spans.total_ns for spans in part) for part in self.parts))

    @property
    def exposed(self) -> Spans:
        return self._part("exposed_comm_ns")

    @property
    def data(self) -> Spans:
        return self._part("data_ns")

    @property
    def copies(self) -> Spans:
        return self._part("copy_ns")

    @property
    def idle(self) -> Spans:
        return self._part("idle_ns")

    def _part(self, name: str) -> Spans:
        return self.parts[[part.name for part in fields(Breakdown)].index(name)][0]


def split_step(trace: Trace, step: int) -> StepSplit | None:
    """Return the parts of the step; ``None`` if it has no work."""
    window = step_window(trace, step)
    if window is None:
        return None
    left: Spans = window

    def take(spans: Spans) -> Spans:
        nonlocal left
        taken = intersect(left, spans)
        left = subtract(left, spans)
        return taken

    compute = trace.compute
    here = _rows_inside(compute, window)
    in_phase = {phase: union_of(compute, here[compute.phase[here] == phase]) for phase in Phase}
    backward = (take(in_phase[Phase.BACKWARD]), take(in_phase[Phase.FINALIZE]))
    forward, optimizer = take(in_phase[Phase.FORWARD]), take(in_phase[Phase.OPTIMIZER])
    other = take(in_phase[Phase.OTHER])
    exposed, copies = (
        take(union_of(table, _rows_inside(table, window))) for table in (trace.collectives, trace.copies)
    )
    data = take(marked_spans(trace, Mark.DATA))
    parts = ((forward,), backward, (exposed,), (optimizer,), (data,), (other,), (copies,), (left,))
    return StepSplit(parts, is_whole_step(trace, step, window))


def _rows_inside(table: Work | Collectives, window: Spans) -> NDArray[np.int64]:
    """Return the rows that overlap the window."""
    return np.flatnonzero((table.end_ns > window.start_ns[0]) & (table.start_ns < window.end_ns[0]))


def step_window(trace: Trace, step: int) -> Spans | None:
    """Return the step as one span; ``None`` if it has no work."""
    if trace.device == "cpu":
        return _span(trace.steps[step].start_ns, trace.steps[step].end_ns)
    here = _device_work(trace, step)
    if not len(here):
        return None
    end = int(here.end_ns[-1])
    if _is_followed(trace.steps, step):
        after = _device_work(trace, step + 1)
        end = int(after.start_ns[0]) if len(after) else end
    start = int(here.start_ns[0])
    return _span(start, max(end, start + 1))


def is_whole_step(trace: Trace, step: int, window: Spans | None) -> bool:
    """Return whether the trace has all device work of the step."""
    compute = trace.compute
    if trace.device == "cpu" or window is None:
        return True
    if not _is_followed(trace.steps, step):
        return False
    rows = np.flatnonzero((compute.step == step) & (compute.launched_ns != UNKNOWN))
    if not len(rows) or (step > 0 and _is_followed(trace.steps, step - 1)):
        return True
    first = rows[np.argmin(compute.start_ns[rows])]
    queued_since = max(int(window.start_ns[0]), int(compute.launched_ns[first]))
    return int(compute.start_ns[first]) - queued_since <= _BUSY_BEFORE * window.total_ns


def _is_followed(steps: Sequence[Step], step: int) -> bool:
    """Return whether the trace contains the step that directly follows `step`."""
    if step + 1 == len(steps):
        return False
    here, after = steps[step], steps[step + 1]
    return (after.cycle, after.number) == (here.cycle, here.number + 1)


def _span(start_ns: int, end_ns: int) -> Spans:
    return Spans(np.array([start_ns], np.int64), np.array([end_ns], np.int64))


def _device_work(trace: Trace, step: int) -> Spans:
    work = merge(spans_of(trace.compute, step), spans_of(trace.collectives, step))
    return merge(work, spans_of(trace.copies, step))


_MOST = 1.5


def usual_steps(lengths_ns: Iterable[tuple[int, int]], evaluated: Collection[int] = ()) -> tuple[int, ...]:
    """Return the numbers of the usual steps, in ascending order.

    Usual steps take at most 1.5 times as long as the median step. `lengths_ns`: step number and duration, for each
    rank. `evaluated`: numbers of steps that contain an evaluation.
    """
    of_step: dict[int, list[int]] = {}
    for number, length_ns in lengths_ns:
        of_step.setdefault(number, []).append(length_ns)
    means = {number: fmean(lengths) for number, lengths in of_step.items()}
    trained = [mean for number, mean in means.items() if number not in evaluated]
    if trained:
        means = {number: mean for number, mean in means.items() if number not in evaluated or mean <= max(trained)}
    most = _MOST * median(means.values()) if means else 0
    return tuple(sorted(number for number, mean in means.items() if mean <= most))


@dataclass(frozen=True, slots=True)
class RecordedBreakdown:
    """Parts of one step on the host's clock, in ns. They add up to the step."""

    forward_ns: Annotated[int, Number("forward pass; null if only the duration of the step is known", metric="forward")]
    backward_and_comm_ns: Annotated[
        int,
        Number(
            "from the end of the forward pass to the optimizer, including exposed communication",
            metric="backward and comm",
        ),
    ]
    optimizer_ns: Annotated[int, Number("the optimizer", metric="optimizer")]
    data_ns: Annotated[int, Number("waiting for data", metric="data")]
    other_ns: Annotated[int, Number("the rest of the step", metric="other")]


def measure_recorded_breakdown(step: RecordedStep) -> RecordedBreakdown | None:
    """Return the parts of a step; ``None`` if only its duration was recorded, or if a part would be negative."""
    if not step.forwards or step.data_ns is None:
        return None
    forward = sum(f.end_ns - f.start_ns for f in step.forwards)
    optimizer = sum(end - start for start, end in step.optimizers)
    if min(forward, optimizer, step.data_ns) < 0:
        return None
    backward = 0
    for index, one in enumerate(step.forwards):
        if one.has_gradients:
            following = [start for start, _ in step.optimizers if start >= one.end_ns]
            following += [f.start_ns for f in step.forwards[index + 1 :]]
            backward += max(0, min(following, default=step.end_ns) - one.end_ns)
    left = max(0, step.end_ns - step.start_ns - forward - optimizer - step.data_ns)
    backward = min(backward, left)
    return RecordedBreakdown(forward, backward, optimizer, step.data_ns, left - backward)
