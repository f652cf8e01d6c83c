"""Which buckets does a trace show without ddpprof's record? One gradient all-reduce each, in the order of launch.

The layout is the one that most steps share, over all ranks: sizes in the order of launch, an unknown size fits any.
Steps with another layout are left out; DDP rebuilds its buckets after the first iteration. Modules cannot be told
apart: all buckets are those of module 0. Times count from the end of the last DDP forward before the first bucket;
where the script reduces gradients without DDP, from the beginning of the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ddpprof.events import UNKNOWN, Int64Column, Mark, Trace
from ddpprof.measures.bucket_table import BucketRow, summarise_times
from ddpprof.measures.buckets import BucketStep
from ddpprof.measures.gradient_reduces import gradient_all_reduces, reduces_without_ddp
from ddpprof.measures.trailing import measure_trailing

_Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TracedBuckets:
    buckets: tuple[BucketRow, ...]
    notes: tuple[str, ...]
    """which steps were left out and what could not be told, in words for the report"""
    ranks: Mapping[int, tuple[BucketStep, ...]] = field(default_factory=dict)
    """each rank's buckets in every step that was not left out"""


NO_BUCKETS = TracedBuckets((), ())


@dataclass(frozen=True, slots=True)
class TracedPass:
    """The gradient all-reduces of one step of one rank, in the order of launch."""

    step: int
    """index into the steps of the rank's trace"""
    number: int
    """the step's"""
    sizes: _Sizes
    """or `UNKNOWN`"""
    origin_ns: int
    times_ns: tuple[tuple[int, int, int], ...]
    """launch, start and end of each, since the origin"""
    spans_forwards: bool
    """a DDP forward ended between its first launch and its last"""
    step_start_ns: int
    step_end_ns: int
    backward_end_ns: int | None
    """end of the last backward compute; these three also count from the origin"""


@dataclass(frozen=True, slots=True)
class TracedPasses:
    """Of one rank."""

    epoch_ns: int | None
    passes: tuple[TracedPass, ...]


def trace_buckets(ranks: Mapping[int, TracedPasses], one_clock: bool) -> TracedBuckets:
    """`ranks`: of each that has a trace. `one_clock`: all ranks run on one host."""
    passes = [one for of_rank in ranks.values() for one in of_rank.passes]
    if not passes:
        return NO_BUCKETS
    chosen = usual_passes(ranks)
    fitting = [one for of_rank in chosen.values() for one in of_rank]
    known = usual_sizes(chosen)
    steps = {
        rank: tuple(row for one in of_rank for row in _steps(one, ranks[rank].epoch_ns))
        for rank, of_rank in chosen.items()
    }
    one_clock = one_clock and len({of_rank.epoch_ns is None for of_rank in ranks.values()}) == 1
    buckets = tuple(
        BucketRow(
            **summarise_times((0, index), steps, one_clock),
            num_bytes=num_bytes,
            num_parameters=None,
            first_parameter=None,
            last_parameter=None,
        )
        for index, num_bytes in enumerate(known)
    )
    return TracedBuckets(buckets, tuple(_notes(ranks, fitting)), steps)


def usual_passes(ranks: Mapping[int, TracedPasses]) -> Mapping[int, tuple[TracedPass, ...]]:
    """Those with the layout that most have; there is one at least."""
    layout = _layout([one for of_rank in ranks.values() for one in of_rank.passes])
    return {rank: tuple(one for one in of.passes if _fits(one.sizes, layout)) for rank, of in ranks.items()}


def usual_sizes(passes: Mapping[int, Sequence[TracedPass]]) -> list[int | None]:
    """Of passes of one layout: bytes of each bucket; ``None`` where no pass knows it."""
    of_buckets = zip(*(one.sizes for of_rank in passes.values() for one in of_rank), strict=True)
    return [next((size for size in sizes if size != UNKNOWN), None) for sizes in of_buckets]


def find_passes(trace: Trace) -> TracedPasses:
    """Those of the steps that reduced gradients after a DDP forward, or without DDP."""
    comm, origins = trace.collectives, _origins(trace)
    gradients = gradient_all_reduces(trace)
    found = []
    for step in range(len(trace.steps)):
        rows = gradients[comm.step[gradients] == step]
        ended = np.searchsorted(origins, comm.launched_ns[rows], side="right")
        if not len(rows) or not ended[0]:
            continue
        origin, trailing = int(origins[ended[0] - 1]), measure_trailing(trace, step)
        times = np.stack((comm.launched_ns[rows], comm.start_ns[rows], comm.end_ns[rows]), axis=1) - origin
        found.append(
            TracedPass(
                step=step,
                number=trace.steps[step].number,
                sizes=tuple(comm.num_bytes[rows].tolist()),
                origin_ns=origin,
                times_ns=tuple((launch, start, end) for launch, start, end in times.tolist()),
                spans_forwards=bool(ended[-1] > ended[0]),
                step_start_ns=trace.steps[step].start_ns - origin,
                step_end_ns=trace.steps[step].end_ns - origin,
                backward_end_ns=trailing.backward_end_ns - origin if trailing is not None else None,
            )
        )
    return TracedPasses(trace.epoch_ns, tuple(found))


def _origins(trace: Trace) -> Int64Column:
    """From which each step's times may count, sorted."""
    marks = trace.host_spans
    if not reduces_without_ddp(trace):
        return np.sort(marks.end_ns[marks.mark == Mark.FORWARD])
    rows = np.flatnonzero((marks.mark == Mark.BACKWARD) & (marks.step >= 0))
    _, first = np.unique(marks.step[rows], return_index=True)  # rows are sorted by start
    return np.sort(marks.start_ns[rows[first]])


def _layout(passes: Sequence[TracedPass]) -> _Sizes:
    """What most passes fit; of several, the one seen last: the first steps may still have DDP's first layout."""
    counts = Counter(one.sizes for one in passes)
    votes = {sizes: sum(n for other, n in counts.items() if _fits(other, sizes)) for sizes in counts}
    last = {one.sizes: one.step for one in sorted(passes, key=lambda one: one.step)}
    return max(counts, key=lambda sizes: (votes[sizes], last[sizes], sizes))


def _fits(sizes: _Sizes, layout: _Sizes) -> bool:
    return len(sizes) == len(layout) and all(
        UNKNOWN in (a, b) or a == b for a, b in zip(sizes, layout, strict=True)
    )  # fmt: skip


def _steps(one: TracedPass, epoch_ns: int | None) -> list[BucketStep]:
    return [
        BucketStep(
            step=one.number,
            module=0,
            index=index,
            origin_ns=one.origin_ns + (epoch_ns or 0),
            first_ready_ns=None,
            ready_ns=None,
            launched_ns=launched,
            started_ns=started,
            finished_ns=finished,
            last_parameter=None,
            previous_ready_ns=None,
        )
        for index, (launched, started, finished) in enumerate(one.times_ns)
    ]


def _notes(ranks: Mapping[int, TracedPasses], chosen: Collection[TracedPass]) -> list[str]:
    notes = []
    left_out: dict[int, list[int]] = {}
    fitting = set(map(id, chosen))
    for rank, of_rank in ranks.items():
        for one in of_rank.passes:
            if id(one) not in fitting:
                left_out.setdefault(one.number, []).append(rank)
    for number, odd in sorted(left_out.items()):
        where = "" if len(odd) == len(ranks) else f" of rank{'s' * (len(odd) > 1)} {', '.join(map(str, odd))}"
        is_first = number == min(one.number for of_rank in ranks.values() for one in of_rank.passes)
        notes.append(
            f"the bucket table leaves out step {number}{where}: its gradient all-reduces differ from most steps' in "
            "number or size" + (" (DDP rebuilds its buckets after the first iteration)" if is_first else "")
        )
    if any(one.spans_forwards for one in chosen):
        notes.append("the bucket table counts the buckets of all backward passes of a step as one module's")
    return notes
