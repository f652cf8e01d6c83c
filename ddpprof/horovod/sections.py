"""Reductions by Horovod: per step, per tensor, per fused group."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddpprof.horovod.reductions import FusedGroup, HorovodStep, HorovodSummary, HorovodTensor
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
        yield Line(f"Collectives outside the steps: {words} in all.", is_aside=True)


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
            "nothing: no gradient is announced, rank 0 computes",
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
            "ready: announced, since the step's first announcement; waiting: the part of negotiation in which Horovod "
            "works on no tensor; fused: number of other tensors that share its comm",
            cut_off(len(summary.tensors), _MAX_ROWS, "tensors"),
        ),
    )


def _tensor(one: HorovodTensor) -> tuple[str, ...]:
    times = (one.announced_ns, one.negotiation_ns, one.waiting_ns, one.queue_ns, one.copy_ns, one.collective_ns)
    return clean(one.tensor, most=60), megabytes(one.num_bytes), *map(ms, times), str(one.num_fused - 1)


def _groups(summary: HorovodSummary) -> Table:
    names = ("MB", "steps", "started", "copies", "comm", "algbw GB/s", "busbw GB/s")
    return Table(
        "Collectives by what is fused, ms (medians)",
        (Column("tensors", is_number=False), *map(Column, names)),
        tuple(map(_group, summary.groups[:_MAX_ROWS])),
        notes(
            "all ranks begin together, so a collective's time is its transfer; algbw, busbw as nccl-tests defines them",
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
