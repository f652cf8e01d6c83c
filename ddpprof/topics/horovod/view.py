"""What a Horovod timeline shows and advises.

The timeline does not show what computation hides, so waiting counts only after rank 0 announced its last gradient: its
backward pass is over by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median

from ddpprof.engine.finding import Finding, in_ms, only_known, size
from ddpprof.engine.topic import FileMeasures, Topic, View
from ddpprof.layout import (
    Column,
    Line,
    Section,
    Table,
    clean,
    count,
    cut_off,
    gigabytes_per_s,
    median_of,
    megabytes,
    ms,
    notes,
)
from ddpprof.model import OtherFile
from ddpprof.topics.horovod.reductions import (
    FusedGroup,
    HorovodStep,
    HorovodSummary,
    HorovodTensor,
    find_horovod_steps,
    summarise_horovod,
)
from ddpprof.topics.horovod.timeline import HOROVOD_TIMELINE, HorovodTimeline
from ddpprof.topics.horovod.waiting import summarise_tick_waiting
from ddpprof.topics.ranks.arrivals import WAITING, WAITING_AFTER_START, RankWaiting

_MANY_CYCLES = 3
"""limit in cycles; a longer wait is caused by a rank, not by the cycle time"""
_DEFAULT_CYCLE_NS = 1_000_000
_SHORT_CYCLE_NS = 600_000
"""cycle time below which a shorter one saves nothing, ns"""
_SMALL_BYTES = 1_000_000
_MANY_ALONE = 4
"""number of small tensors per step that are reduced one by one"""
_MOSTLY = 0.5


def _median(summary: HorovodSummary, value: Callable[[HorovodStep], int]) -> int:
    return round(median(map(value, summary.steps))) if summary.steps else 0


def negotiation(summary: HorovodSummary, view: View) -> Iterator[Finding]:
    """Report ready gradients that wait for a late rank, or for Horovod's next cycle."""
    gain = _median(summary, lambda s: s.trailing.waiting_ns)
    if not view.worth(gain):
        return
    cycle = summary.cycle_ns or _DEFAULT_CYCLE_NS
    trailing = _median(summary, lambda s: s.trailing.total_ns)
    marked = "" if summary.cycle_ns is None else f"; a cycle takes {in_ms(summary.cycle_ns)}"
    evidence = f"all gradients are reduced {in_ms(trailing)} after rank 0's last gradient is ready{marked}"
    if gain <= _MANY_CYCLES * cycle:
        if summary.cycle_ns is not None and summary.cycle_ns <= _SHORT_CYCLE_NS:
            return
        yield Finding(
            "horovod-cycle",
            f"Reductions wait {in_ms(gain)} per step for Horovod's next cycle",
            evidence,
            "HOROVOD_CYCLE_TIME=0.5 (milliseconds; the default is 1): a ready tensor waits for half a cycle on "
            "average.",
            gain,
            numbers=only_known(waiting_ns=gain, cycle_ns=summary.cycle_ns, trailing_ns=trailing),
        )
        return
    late = _late_rank(view)
    whom = f"rank {late.rank}" if late is not None else "rank 1" if view.world_size == 2 else "other ranks"
    if late is not None:
        evidence += (
            f"; where Horovod names the rank, rank {late.rank} was last for {late.num_last} of {late.num_collectives}"
        )
        evidence += " tensors"
    elif view.world_size != 2:
        evidence += "; only a timeline recorded with HOROVOD_CACHE_CAPACITY=0 says for which of them"
    yield Finding(
        "horovod-straggler",
        f"Rank 0 waits {in_ms(gain)} per step for {whom}, after its own gradients are ready",
        evidence,
        "Check what that rank does before its gradients are ready: data loading, larger batches, or a slower or "
        "busier machine. A shorter HOROVOD_CYCLE_TIME does not help.",
        gain,
        numbers=only_known(waiting_ns=gain, trailing_ns=trailing),
    )


def _late_rank(view: View) -> RankWaiting | None:
    """Return the rank that was last most often, among tensors for which a single rank was last."""
    known = [one for one in view[WAITING_AFTER_START] or () if one.num_last]
    latest = max(known, key=lambda one: one.num_last or 0, default=None)
    if latest is None or latest.rank == 0:
        return None
    return latest if (latest.num_last or 0) > _MOSTLY * sum(one.num_last or 0 for one in known) else None


def not_fused(summary: HorovodSummary, view: View) -> Iterator[Finding]:
    """Report many small tensors that are each reduced on their own."""
    alone = _median(summary, lambda s: s.num_alone)
    gain = _median(summary, lambda s: s.alone_ns - s.longest_alone_ns)
    small = [t for t in summary.tensors if t.num_fused == 1 and t.num_bytes is not None and t.num_bytes < _SMALL_BYTES]
    if alone < _MANY_ALONE or len(small) < _MANY_ALONE or not view.worth(gain):
        return
    tensors = _median(summary, lambda s: s.num_tensors)
    average = sum(t.num_bytes or 0 for t in small) / len(small)
    yield Finding(
        "horovod-not-fused",
        f"{alone} of {tensors} tensors per step are reduced one by one",
        f"{len(small)} of them are small, {size(average)} on average; their collectives take "
        f"{in_ms(_median(summary, lambda s: s.alone_ns))} per step",
        "HOROVOD_FUSION_THRESHOLD=134217728 (its default; 0 switches fusion off); if that is already set, a longer "
        "HOROVOD_CYCLE_TIME lets more tensors become ready for one collective.",
        gain,
        numbers=only_known(num_alone=alone, num_tensors=tensors, mean_bytes=round(average)),
    )


def fusion_copies(summary: HorovodSummary, view: View) -> Iterator[Finding]:
    """Report gradients that are copied into the fusion buffer and back."""
    gain = _median(summary, lambda s: s.reduction.copy_ns)
    if not view.worth(gain):
        return
    most = max(summary.tensors, key=lambda tensor: tensor.num_bytes or 0)
    largest = f"; the largest tensor, {most.tensor}, has {size(most.num_bytes)}" if most.num_bytes else ""
    yield Finding(
        "horovod-copies",
        f"Copies into and out of the fusion buffer take {in_ms(gain)} per step",
        f"while no collective runs; {_median(summary, lambda s: s.num_tensors - s.num_alone)} tensors per step are "
        f"fused{largest}",
        "A tensor that is larger than HOROVOD_FUSION_THRESHOLD is reduced in place: set the threshold below the "
        "size of the largest tensors. torch's DistributedDataParallel(model, gradient_as_bucket_view=True) needs no "
        "copies at all.",
        gain,
        numbers=only_known(copy_ns=gain),
    )


_MAX_ROWS = 24

_PARTS: tuple[tuple[str, Callable[[HorovodStep], int]], ...] = (
    ("all reduced", lambda s: s.reduction.total_ns),
    ("comm", lambda s: s.reduction.collective_ns),
    ("copies", lambda s: s.reduction.copy_ns),
    ("other", lambda s: s.reduction.other_work_ns),
    ("waiting", lambda s: s.reduction.waiting_ns),
    ("nothing", lambda s: s.reduction.nothing_ns),
    ("trailing", lambda s: s.trailing.total_ns),
)


def horovod_tables(summary: HorovodSummary) -> Iterable[Section]:
    if summary.steps:
        yield _steps(summary)
        yield _tensors(summary)
        yield _groups(summary)
    if summary.others:
        words = "; ".join(
            f"{one.num_calls} × {one.kind.replace('_', '-')}, {ms(one.collective_ns)} ms" for one in summary.others
        )
        yield Line(f"Collectives outside the steps, in total: {words}.", is_aside=True)


def _steps(summary: HorovodSummary) -> Table:
    steps = summary.steps
    rows = [
        (str(step.step), ms(step.duration_ns), str(step.num_collectives), *(ms(part(step)) for _, part in _PARTS))
        for step in steps[-_MAX_ROWS:]
    ]
    medians = (median_of(steps, lambda s: s.duration_ns), *(median_of(steps, part) for _, part in _PARTS))
    rows.append(("median", ms(medians[0]), "", *map(ms, medians[1:])))
    return Table(
        "Horovod's reductions per step, ms",
        tuple(map(Column, ("step", "ms", "calls", *(name for name, _ in _PARTS)))),
        tuple(rows),
        notes(
            "all reduced: time since the first gradient was announced; the next five columns add up to it",
            "waiting: for ranks or the next cycle, while no collective or copy runs",
            "nothing: no gradient is announced; rank 0 computes",
            "trailing: from rank 0's last gradient until all are reduced",
            "" if summary.cycle_ns is None else f"a cycle takes {ms(summary.cycle_ns)} ms",
            f"the last {_MAX_ROWS} of {len(steps)} steps" if len(steps) > _MAX_ROWS else "",
        ),
    )


def _tensors(summary: HorovodSummary) -> Table:
    names = ("ready", "negotiation", "waiting", "queue", "copies", "comm", "fused")
    return Table(
        "Tensors, ms (medians)",
        (Column("tensor", is_number=False), Column("MB"), *map(Column, names)),
        tuple(map(_tensor, summary.tensors[:_MAX_ROWS])),
        notes(
            "ready: time of its announcement, since the first in the step; waiting: the part of negotiation in "
            "which Horovod works on no tensor; fused: number of other tensors in the same collective",
            cut_off(len(summary.tensors), _MAX_ROWS, "tensors"),
        ),
    )


def _tensor(one: HorovodTensor) -> tuple[str, ...]:
    times = (one.announced_ns, one.negotiation_ns, one.waiting_ns, one.queue_ns, one.copy_ns, one.collective_ns)
    return clean(one.tensor, most=60), megabytes(one.num_bytes), *map(ms, times), str(one.num_fused - 1)


def _groups(summary: HorovodSummary) -> Table:
    names = ("MB", "steps", "started", "copies", "comm", "algbw GB/s", "busbw GB/s")
    return Table(
        "Collectives by fused tensors, ms (medians)",
        (Column("tensors", is_number=False), *map(Column, names)),
        tuple(map(_group, summary.groups[:_MAX_ROWS])),
        notes(
            "all ranks begin together, so a collective's time is its transfer; algbw and busbw as defined by "
            "nccl-tests",
            cut_off(len(summary.groups), _MAX_ROWS, "groups"),
        ),
    )


def _group(one: FusedGroup) -> tuple[str, ...]:
    tensors = clean(one.tensors[0], most=60)
    if len(one.tensors) > 1:
        tensors += f" and {count(len(one.tensors) - 1, 'other')}"
    rates = map(gigabytes_per_s, (one.algbw_bytes_per_s, one.busbw_bytes_per_s))
    times = (one.started_ns, one.copy_ns, one.collective_ns)
    return tensors, megabytes(one.num_bytes), str(one.num_steps), *map(ms, times), *rates


_HAS_NO_COMPUTATION = (
    "a Horovod timeline has no computation, so overlap and exposed communication are not known; torch.profiler records "
    "both"
)
_NO_STEPS = (
    "no steps found: no tensor is reduced twice under one name. hvd.DistributedOptimizer(named_parameters=…) names them"
)


def _of_file(file: OtherFile) -> FileMeasures[HorovodSummary] | None:
    if not isinstance(file, HorovodTimeline):
        return None
    summary, steps = summarise_horovod(file), find_horovod_steps(file)
    return FileMeasures(
        summary,
        file.backend,
        {step.step: step.duration_ns for step in summary.steps if step.duration_ns is not None},
        (*file.notes, *_missing(summary)),
        {
            WAITING.name: summarise_tick_waiting(steps, file.cycles_ns, file.world_size),
            # In the first step ranks are late because they started late; where Horovod caches, it alone has ticks.
            WAITING_AFTER_START.name: summarise_tick_waiting(steps[1:], file.cycles_ns, file.world_size),
        },
    )


def _missing(summary: HorovodSummary) -> Iterator[str]:
    if not summary.steps:
        yield _NO_STEPS
    yield _HAS_NO_COMPUTATION
    if summary.num_with_ranks < summary.num_reductions:
        yield (
            f"which rank was late is known for {summary.num_with_ranks} of {summary.num_reductions} reductions: "
            "Horovod answers the others from its cache. HOROVOD_CACHE_CAPACITY=0 records it for all, but slows the "
            "training"
        )


HOROVOD: Topic[None, HorovodSummary] = Topic(
    name="horovod",
    sections={"step": horovod_tables},
    rules=(negotiation, not_fused, fusion_copies),
    file=HOROVOD_TIMELINE,
    of_file=_of_file,
)
