"""Measure, from a Horovod timeline, how long the reduction of a step's gradients takes, and why.

    reduction = from the first gradient announced to the last gradient reduced
              = collectives + copies + other work + waiting for ranks + nothing announced
    trailing  = part of the reduction after rank 0 has announced its last gradient, that is, after its backward pass

Each term of the sum excludes the time that an earlier term already includes. Waiting for ranks is negotiation during
which Horovod processes no tensor. Negotiation ends with a cycle, so it takes up to `HOROVOD_CYCLE_TIME` even if all
ranks are ready. A timeline has no computation, so overlap is unknown.

Rank 0 learns about other ranks once per cycle, so ranks that it learns about in the same cycle count as simultaneous.
The timeline lacks this information for tensors in Horovod's response cache.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.topic import FileMeasures, ReportView, Topic, View
from ddpprof.intervals import NO_SPANS, Spans, clip, merge, subtract, union
from ddpprof.layout import Section, Table, columns, in_ms, median_of, ms, notes
from ddpprof.load.horovod_timeline import HOROVOD_TIMELINE, HorovodTimeline, TensorOp
from ddpprof.model import OtherFile
from ddpprof.statistics import median_known

_ONE_CYCLE_NS = 500_000
"""if cycles are not marked, two ranks count as simultaneous if they announce a tensor within this time, which is half
of Horovod's default cycle
"""
_MANY_CYCLES = 3
"""a wait of more than this many cycles is attributed to a rank, not to the cycle time"""
_DEFAULT_CYCLE_NS, _SHORT_CYCLE_NS = 1_000_000, 600_000
"""Horovod's default cycle time; a shorter cycle time is advised if the cycle time is longer than the second value"""
_MOSTLY = 0.5
_MAX_ROWS = 24


@dataclass(frozen=True, slots=True)
class ReductionParts:
    """Parts of a time span, in ns. They add up to its length."""

    collective_ns: int
    copy_ns: int
    """copies into and out of the fusion buffer, and between host and device"""
    other_work_ns: int
    """queueing on the device, setup, allocation, and Horovod's own bookkeeping"""
    waiting_ns: int
    """waiting for other ranks and for the next cycle"""
    nothing_ns: int
    """time in which rank 0 has announced no tensor, because it computes"""

    @property
    def total_ns(self) -> int:
        return self.collective_ns + self.copy_ns + self.other_work_ns + self.waiting_ns + self.nothing_ns


@dataclass(frozen=True, slots=True)
class HorovodStep:
    step: int
    duration_ns: int | None
    """time from the start of this step to the start of the next step; ``None`` for the last step"""
    num_tensors: int
    reduction: ReductionParts
    trailing: ReductionParts


@dataclass(frozen=True, slots=True)
class HorovodSummary:
    cycle_ns: int | None
    """median time from the start of a cycle to the start of the next; ``None`` if cycles are not marked"""
    steps: tuple[HorovodStep, ...]
    num_last: Mapping[int, int] = field(default_factory=dict)
    """rank → number of tensors that this rank announced in a later cycle than all other ranks. The first step is
    excluded, because ranks may start at different times
    """


@dataclass(frozen=True, slots=True)
class StepOps:
    """The reductions of one step."""

    ops: tuple[TensorOp, ...]
    start_ns: int
    end_ns: int | None


def find_horovod_steps(timeline: HorovodTimeline) -> list[StepOps]:
    """Return the steps; empty if no tensor is reduced twice. An incomplete last step is excluded."""
    reductions = [op for op in timeline.ops if op.is_reduction]
    counts = Counter(op.tensor for op in reductions)
    most = max(counts.values(), default=0)
    if most < 2:
        return []
    seen: Counter[str] = Counter()
    steps: list[list[TensorOp]] = [[] for _ in range(most)]
    for op in (op for op in reductions if counts[op.tensor] == most):
        steps[seen[op.tensor]].append(op)
        seen[op.tensor] += 1
    starts = [min(map(_announced_ns, ops)) for ops in steps]
    for op in (op for op in reductions if counts[op.tensor] < most):
        if (step := bisect(starts, _announced_ns(op)) - 1) >= 0:
            steps[step].append(op)
    tensors = [{op.tensor for op in ops} for ops in steps]
    is_cut_short = bool(set.intersection(*tensors[:-1]) - tensors[-1])
    return [
        StepOps(tuple(sorted(ops, key=_announced_ns)), start, end)
        for ops, start, end in zip(steps, starts, [*starts[1:], None], strict=True)
    ][: most - is_cut_short]


def _announced_ns(op: TensorOp) -> int:
    """Return the time at which the first rank announced the tensor."""
    return op.start_ns if op.negotiated is None else op.negotiated[0]


def summarize_horovod(timeline: HorovodTimeline) -> HorovodSummary:
    steps = find_horovod_steps(timeline)
    worked = _spans((op.start_ns, op.end_ns) for op in timeline.ops)
    return HorovodSummary(
        cycle_ns=median_known(np.diff(timeline.cycles_ns).tolist()),
        steps=tuple(_measure_step(number, step, worked) for number, step in enumerate(steps)),
        num_last=_count_last(steps[1:], timeline),
    )


def _measure_step(number: int, step: StepOps, worked: Spans) -> HorovodStep:
    ops, end = step.ops, max(op.end_ns for op in step.ops)
    last = max(op.ready_ns.get(0, _announced_ns(op)) for op in ops)  # rank 0 announced its last tensor
    return HorovodStep(
        step=number,
        duration_ns=None if step.end_ns is None else step.end_ns - step.start_ns,
        num_tensors=len(ops),
        reduction=_parts(ops, worked, step.start_ns, end),
        trailing=_parts(ops, worked, min(last, end), end),
    )


def _parts(ops: Sequence[TensorOp], worked: Spans, start: int, end: int) -> ReductionParts:
    """Divide the time from `start` to `end` into parts. Each part excludes the time of the parts before it."""
    kinds = (
        _spans(span for op in ops for span in op.collectives),
        _spans(span for op in ops for span in op.copies),
        worked,
        _spans(op.negotiated for op in ops if op.negotiated is not None),
    )
    taken, lengths = NO_SPANS, []
    for kind in kinds:
        part = subtract(clip(kind, start, end), taken)
        lengths.append(part.total_ns)
        taken = merge(taken, part)
    collective, copies, other, waiting = lengths
    return ReductionParts(collective, copies, other, waiting, end - start - sum(lengths))


def _spans(spans: Iterable[tuple[int, int]]) -> Spans:
    rows = np.array([*spans], np.int64).reshape(-1, 2)
    return union(rows[:, 0], rows[:, 1])


def _count_last(steps: Sequence[StepOps], timeline: HorovodTimeline) -> dict[int, int]:
    ops = [op for step in steps for op in step.ops if len(op.ready_ns) >= (timeline.world_size or 0) > 1]
    last = Counter(last_rank(op, timeline.cycles_ns) for op in ops)
    return {rank: number for rank, number in last.items() if rank is not None}


def last_rank(op: TensorOp, cycles_ns: Sequence[int]) -> int | None:
    """Return the rank that announced the tensor in a later cycle than all other ranks; ``None`` if there is none."""
    *_, before, last = sorted(op.ready_ns.items(), key=lambda one: one[1])
    if cycles_ns:
        return last[0] if bisect(cycles_ns, last[1]) > bisect(cycles_ns, before[1]) else None
    return last[0] if last[1] - before[1] >= _ONE_CYCLE_NS else None


def _median(summary: HorovodSummary, value: Callable[[HorovodStep], int]) -> int:
    return median_of(summary.steps, value) or 0


def negotiation(summary: HorovodSummary, view: View) -> Iterator[Finding]:
    """Report gradients that wait for a late rank, or for Horovod's next cycle."""
    gain, trailing = _median(summary, lambda s: s.trailing.waiting_ns), _median(summary, lambda s: s.trailing.total_ns)
    if not view.worth(gain):
        return
    cycle = summary.cycle_ns or _DEFAULT_CYCLE_NS
    marked = "" if summary.cycle_ns is None else f"; a cycle takes {in_ms(summary.cycle_ns)}"
    evidence = f"all gradients are reduced {in_ms(trailing)} after rank 0's last gradient is ready{marked}"
    if gain > _MANY_CYCLES * cycle:
        yield _straggler(summary, gain, trailing, evidence, view)
    elif summary.cycle_ns is None or cycle > _SHORT_CYCLE_NS:
        yield Finding(
            "horovod-cycle",
            f"Reductions wait {in_ms(gain)} per step for Horovod's next cycle",
            evidence,
            "Set HOROVOD_CYCLE_TIME=0.5 (milliseconds; the default is 1): a ready tensor waits half a cycle on "
            "average.",
            gain,
            numbers=only_known(waiting_ns=gain, cycle_ns=summary.cycle_ns, trailing_ns=trailing),
        )


def _straggler(summary: HorovodSummary, gain: int, trailing: int, evidence: str, view: View) -> Finding:
    num_last, of_all = summary.num_last, sum(summary.num_last.values())
    late = max(num_last, key=lambda rank: num_last[rank], default=0)
    whom = "rank 1" if view.world_size == 2 else "other ranks"
    if late and num_last[late] > _MOSTLY * of_all:
        whom = f"rank {late}"
        evidence += f"; {whom} was last for {num_last[late]} of the {of_all} tensors whose last rank is known"
    elif view.world_size != 2:
        evidence += (
            "; to see which ranks are late, record a timeline with HOROVOD_CACHE_CAPACITY=0, which slows training"
        )
    return Finding(
        "horovod-straggler",
        f"Rank 0 waits {in_ms(gain)} per step for {whom}, after its own gradients are ready",
        evidence,
        "Check the late ranks for slow data loading, larger batches, and slower or busier machines. A shorter "
        "HOROVOD_CYCLE_TIME does not help.",
        gain,
        numbers=only_known(waiting_ns=gain, trailing_ns=trailing),
    )


_COLUMNS: Mapping[str, Callable[[HorovodStep], int | None]] = {
    "ms": lambda s: s.duration_ns,
    "all reduced": lambda s: s.reduction.total_ns,
    "comm": lambda s: s.reduction.collective_ns,
    "copies": lambda s: s.reduction.copy_ns,
    "other": lambda s: s.reduction.other_work_ns,
    "waiting": lambda s: s.reduction.waiting_ns,
    "nothing": lambda s: s.reduction.nothing_ns,
    "trailing": lambda s: s.trailing.total_ns,
}


def horovod_table(summary: HorovodSummary, _report: ReportView) -> Iterable[Section]:
    steps = summary.steps
    if not steps:
        return
    rows = [(str(one.step), *(ms(of(one)) for of in _COLUMNS.values())) for one in steps]
    medians = ("median", *(ms(median_of(steps, of)) for of in _COLUMNS.values()))
    yield Table(
        "Horovod's reductions per step, ms",
        columns("step", *_COLUMNS),
        (*rows[-_MAX_ROWS:], medians),
        notes(
            "all reduced: from the announcement of the first gradient to the end of the last reduction; the sum of "
            "the next five columns",
            "waiting: for other ranks or for the next cycle, while no collective or copy runs",
            "nothing: no gradient is announced, because rank 0 is computing",
            "trailing: from rank 0's last gradient until all gradients are reduced",
            "" if summary.cycle_ns is None else f"a cycle takes {in_ms(summary.cycle_ns)}",
            f"the last {_MAX_ROWS} of {len(steps)} steps" if len(steps) > _MAX_ROWS else "",
        ),
    )


_HAS_NO_COMPUTATION = (
    "a Horovod timeline contains no computation, so overlap and exposed communication are unknown; torch.profiler "
    "records both"
)
_NO_STEPS = (
    "no steps found: no tensor is reduced twice under the same name. Name the tensors with "
    "hvd.DistributedOptimizer(named_parameters=…)"
)


def _of_file(file: OtherFile) -> FileMeasures[HorovodSummary] | None:
    if not isinstance(file, HorovodTimeline):
        return None
    summary = summarize_horovod(file)
    missing = (*file.notes, *(() if summary.steps else (_NO_STEPS,)), _HAS_NO_COMPUTATION)
    lengths_ns = {step.step: step.duration_ns for step in summary.steps if step.duration_ns is not None}
    return FileMeasures(summary, file.backend, lengths_ns, missing)


HOROVOD: Topic[None, HorovodSummary] = Topic(
    name="horovod",
    sections={"step": horovod_table},
    rules=(negotiation,),
    file=HOROVOD_TIMELINE,
    of_file=_of_file,
)
