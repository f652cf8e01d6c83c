"""Compare the collectives and steps of all ranks: late ranks, waiting ranks, and clock offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from ddpprof.engine.numbers import DEVICE, HOST
from ddpprof.engine.topic import ReportView, TableSchema, Topic
from ddpprof.intervals import Spans, subtract
from ddpprof.layout import (
    ABSENT,
    MAX_RANKS,
    Line,
    Section,
    Table,
    clean,
    columns,
    count,
    cut_off,
    in_ms,
    ms,
    notes,
    optional,
    table_of,
)
from ddpprof.model import DdpModule, Rank, RecordedStep
from ddpprof.model.tables import rows_of
from ddpprof.topics.buckets.steps import bucket_rows
from ddpprof.topics.collective_matching import RankCollectives, match_collectives, rank_collectives
from ddpprof.topics.collectives import CollectiveSummary, collective_table, summarize_collectives
from ddpprof.topics.ranks.clock import CommonClock, HostClock, find_common_clock
from ddpprof.topics.ranks.own_time import (
    RankWaiting,
    StepProgress,
    measure_arrivals,
    progress_of_rank,
    summarize_waiting,
)
from ddpprof.topics.ranks.stragglers import (
    LateGradient,
    OwnTimePart,
    Stragglers,
    find_late_gradients,
    find_stragglers,
)
from ddpprof.topics.steps.overlap import spans_of

RecordedSteps = Callable[[Sequence[int]], Mapping[int, Sequence[RecordedStep]]]
"""function that loads the recorded steps of the given ranks, without baseline steps"""

_MOST_OTHERS = 63
"""maximum number of ranks whose gradients are compared with a straggler's gradients"""
_MOST_GRADIENTS = 3
_MOSTLY = 0.8
"""a rank is mentioned if it arrives last at this share of the collectives or more"""


@dataclass(frozen=True, slots=True)
class TracedCollectives:
    """The collectives in one rank's trace."""

    collectives: RankCollectives
    """collectives of the training steps"""
    message_bytes: Mapping[int, int]
    """row of ``collectives`` → size in bytes; only for gradient all-reduces whose size the recorder knows"""
    exposed: Spans
    """spans of communication without concurrent computation"""


@dataclass(frozen=True, slots=True)
class RankContribution:
    """Data of one rank that is needed to compare ranks."""

    progress: tuple[StepProgress, ...]
    traced: TracedCollectives | None


def traced_collectives(rank: Rank, modules: Sequence[DdpModule]) -> TracedCollectives | None:
    """Return the collectives in the rank's trace; ``None`` if the rank has no trace."""
    trace, collectives = rank.trace, _of_training_steps(rank)
    if trace is None or collectives is None:
        return None
    exposed = subtract(spans_of(trace.collectives, None), spans_of(trace.compute, None))
    return TracedCollectives(collectives, _message_bytes(rank, modules), exposed)


def _of_training_steps(rank: Rank) -> RankCollectives | None:
    """Return the rank's collectives, excluding baseline steps."""
    one = rank_collectives(rank)
    if one is None or not (left_out := rank.baseline_step_indices):
        return one
    return replace(one, collectives=rows_of(one.collectives, ~np.isin(one.collectives.step, left_out)))


def _message_bytes(rank: Rank, modules: Sequence[DdpModule]) -> dict[int, int]:
    """Return the bytes of the gradient all-reduces by row, from the record.

    Gloo's spans may have no size in the trace.
    """
    if rank.trace is None or rank.record is None:
        return {}
    kept = ~np.isin(rank.trace.collectives.step, rank.baseline_step_indices)
    row_of = np.cumsum(kept) - 1  # in the table of `_of_training_steps`
    sizes = {}
    modules = rank.record.modules or modules  # ranks of another process group may have other modules
    for step in rank.record.steps:
        for (place, bucket), row in bucket_rows(modules, step, rank.trace).items():
            num_bytes = modules[step.passes[place].module].message_bytes(bucket)
            if num_bytes is not None:
                sizes[int(row_of[row])] = num_bytes
    return sizes


@dataclass(frozen=True, slots=True)
class LateGradients:
    """Gradients at which a rank falls behind in its backward pass, largest delay first."""

    rank: int
    gradients: tuple[LateGradient, ...]


@dataclass(frozen=True, slots=True)
class AcrossRanks:
    """Measures of several ranks together."""

    num_matched: int
    """number of collectives that were matched on at least two ranks"""
    clock: CommonClock | None
    waiting: Annotated[tuple[RankWaiting, ...], DEVICE]
    collectives: Annotated[tuple[CollectiveSummary, ...], DEVICE]
    stragglers: Stragglers | None
    """stragglers found in the recorded steps; ``None`` if there are too few ranks or steps"""
    late_gradients: Annotated[tuple[LateGradients, ...], HOST]


def across_ranks(
    traced: Mapping[int, TracedCollectives],
    progress: Mapping[int, Sequence[StepProgress]],
    with_record: Sequence[int],
    modules: Sequence[DdpModule],
    world_size: int | None,
    recorded: RecordedSteps,
) -> tuple[AcrossRanks, tuple[str, ...]]:
    """Return the measures of all ranks together, and descriptions of collectives that do not match.

    `progress`: steps by rank, for the ranks that average their gradients with each other. `with_record`: the ranks in
    `progress` that have a record.
    """
    known = [trace.collectives for trace in traced.values()]
    matched = match_collectives(known)
    clock = find_common_clock(known, matched)
    arrivals = measure_arrivals(known, matched, clock)
    stragglers = find_stragglers(progress)
    sizes = {rank: trace.message_bytes for rank, trace in traced.items()}
    return (
        AcrossRanks(
            num_matched=len(matched),
            clock=clock,
            waiting=summarize_waiting(matched, arrivals, {rank: trace.exposed for rank, trace in traced.items()}),
            collectives=summarize_collectives(known, matched, arrivals, world_size, sizes),
            stragglers=stragglers,
            late_gradients=_late_gradients(with_record, modules, stragglers, recorded),
        ),
        matched.mismatches,
    )


def _late_gradients(
    ranks: Sequence[int], modules: Sequence[DdpModule], stragglers: Stragglers | None, recorded: RecordedSteps
) -> tuple[LateGradients, ...]:
    found = stragglers.stragglers if stragglers is not None else ()
    late = [one.rank for one in found if one.part in (OwnTimePart.BACKWARD, None)]
    if not late:
        return ()
    others = [rank for rank in ranks if rank not in late]
    every = max(1, -(-len(others) // _MOST_OTHERS))
    steps = recorded([*late, *others[::every]])
    gradients = {rank: find_late_gradients(modules, steps, rank) for rank in late}
    return tuple(LateGradients(rank, found) for rank, found in gradients.items() if found)


def straggler_table(across: AcrossRanks) -> Iterable[Section]:
    stragglers = across.stragglers
    if stragglers is None:
        return
    if not stragglers.stragglers:
        steps = count(stragglers.num_steps, "recorded step")
        yield Line(
            f"The {steps} do not show that any rank is significantly slower than the other ranks"
            f"{_yet_last(across.waiting)}.",
            is_aside=True,
        )
        return
    yield table_of(
        "Stragglers, extra ms per step relative to the other ranks (medians)",
        stragglers.stragglers[:MAX_RANKS],
        {
            "rank": lambda one: str(one.rank),
            "late": lambda one: ms(one.late_ns),
            "in": lambda one: "all parts" if one.part is None else one.part.value,
            "of it": lambda one: ABSENT if one.part is None else ms(one.part_late_ns),
            "last in": lambda one: f"{one.num_last} of {one.num_steps}",
            "since step": lambda one: "first" if one.since_step is None else str(one.since_step),
            "chance": lambda one: "< 0.1%" if one.p_value < 0.001 else f"{one.p_value:.1%}",
        },
        words=("in",),
        note=notes(
            "late: extra time per step, without waits for other ranks; chance: probability that the delay is "
            "due to chance",
            cut_off(len(stragglers.stragglers)),
        ),
    )
    yield from _gradient_table(across.late_gradients)


def _yet_last(waiting: Sequence[RankWaiting]) -> str:
    """Return a clause about a rank that arrives last in most collectives, although no rank is significantly slower."""
    last = max((one for one in waiting if one.num_last is not None), key=lambda one: one.num_last or 0, default=None)
    if last is None or not last.num_last or last.num_last <= _MOSTLY * last.num_collectives:
        return ""
    waits_ns = max(one.waiting_per_step_ns or 0 for one in waiting)
    return (
        f", although rank {last.rank} arrives last in {last.num_last} of {last.num_collectives} collectives and "
        f"other ranks wait up to {in_ms(waits_ns)} per step: its own work takes longer, but there are too few "
        "steps to rule out chance. Record more steps (--steps 20)"
    )


def _gradient_table(late_gradients: Sequence[LateGradients]) -> Iterable[Section]:
    rows = []
    for late in late_gradients:
        for gradient in late.gradients[:_MOST_GRADIENTS]:
            before = gradient.previous_parameter
            after = ABSENT if before is None else clean(before)
            rows.append((str(late.rank), clean(gradient.parameter), ms(gradient.jump_ns), after))
    if rows:
        words = ("late gradient", "after gradient of")
        yield Table("", columns("rank", words[0], "ms", words[1], words=words), tuple(rows))


def waiting_table(across: AcrossRanks) -> Iterable[Section]:
    if len(across.waiting) < 2:
        return
    yield table_of(
        "Waiting for other ranks in collectives, ms (medians)",
        _least_waiting(across.waiting),
        {
            "rank": lambda one: str(one.rank),
            "collectives": lambda one: str(one.num_collectives),
            "arrives last": lambda one: optional(one.num_last),
            "waits per step": lambda one: ms(one.waiting_per_step_ns),
        },
        note=cut_off(len(across.waiting)),
    )
    if across.clock is not None and len(across.clock.hosts) > 1:
        yield Line(_clocks(across.clock), is_aside=True)


def _least_waiting(waiting: Sequence[RankWaiting]) -> Sequence[RankWaiting]:
    """Return all ranks or, if there are many, the ranks that wait least. The other ranks wait for these ranks."""
    if len(waiting) <= MAX_RANKS:
        return waiting
    return sorted(waiting, key=lambda one: one.waiting_per_step_ns or 0)[:MAX_RANKS]


def _clocks(clock: CommonClock) -> str:
    known = [host for host in clock.hosts if host.offset_ns is not None]
    words = [
        f"{clean(host.host, most=40)} {(host.offset_ns or 0) / 1e6:+.3f} ms"
        + (f", {host.drift_ppm:+.1f} ppm" if host.drift_ppm else "")
        + _uncertainty(host)
        for host in known[:MAX_RANKS]
    ]
    return (
        f"Clock offsets of {count(len(clock.hosts), 'host')}, from collectives that end together: {'; '.join(words)}."
    )


def _uncertainty(host: HostClock) -> str:
    if host.bound_ns is None:
        return " (its collectives are inconsistent)"
    noise = "" if host.noise_ns is None else f"±{host.noise_ns / 1e6:.3f}, "
    return f" ({noise}at most ±{host.bound_ns / 1e6:.3f})" if host.bound_ns else ""


def _sections(across: AcrossRanks, _report: ReportView) -> Iterable[Section]:
    return (*straggler_table(across), *waiting_table(across))


ACROSS: Topic[RankContribution, AcrossRanks] = Topic(
    name="across",
    of_rank=lambda rank, _steps, modules: RankContribution(progress_of_rank(rank), traced_collectives(rank, modules)),
    rank_type=RankContribution,
    sections={"collectives": lambda across, _: collective_table(across.collectives), "ranks": _sections},
    tables=(
        TableSchema(
            "collectives",
            "One row per kind of collective, process group and size class, over all profiled steps. A size class "
            "extends from one power of two to the next.",
            CollectiveSummary,
            lambda across, _: across.collectives,
        ),
    ),
)
