"""Measure when each gradient bucket is ready, launched, started and finished, and which of its gradients is ready last.

    ready     the bucket's last gradient is accumulated (torch's `get_backward_stats`)
    launched  the reducer passes the bucket's all-reduce to the backend, in index order
    started, finished   start and end of the collective in the trace

Times are relative to the end of the last DDP forward pass before the backward pass, like those of DDP's reducer. A step
may have several synchronized backward passes through one module; each pass sends all buckets of the module.

A row of the bucket table has the medians over backward passes, steps and ranks, and the rank that launched last:

    transfer  shortest duration of the bucket's collective over the ranks; on other ranks, the duration includes waiting
    late by   last rank's launch - first rank's launch, on the clock of one host
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.numbers import DEVICE, HOST, Number
from ddpprof.intervals import union_of
from ddpprof.model import (
    UNKNOWN,
    BackwardPass,
    CollectiveKind,
    DdpModule,
    Mark,
    Phase,
    Rank,
    RecordedStep,
    StepMode,
    Trace,
)
from ddpprof.model.tables import HOOK_NODE
from ddpprof.statistics import median_known
from ddpprof.topics.steps.overlap import marked_spans


@dataclass(frozen=True, slots=True)
class BucketStep:
    """One bucket in one backward pass of one rank. Times are in ns since the end of the DDP forward pass."""

    step: int
    module: int
    index: int
    origin_ns: int
    """end of the DDP forward pass, in ns since 1970"""
    first_ready_ns: int | None = None
    """time at which the first gradient of the bucket was accumulated"""
    ready_ns: int | None = None
    launched_ns: int | None = None
    started_ns: int | None = None
    finished_ns: int | None = None
    last_parameter: int | None = None
    """reducer index of the parameter whose gradient was accumulated last in the bucket"""
    previous_ready_ns: int | None = None
    """time at which the second-to-last gradient of the bucket was accumulated"""
    pass_index: int = 0
    """index of the backward pass among the step's synchronized backward passes through the module"""


def measure_buckets(modules: Sequence[DdpModule], step: RecordedStep, trace: Trace | None) -> tuple[BucketStep, ...]:
    """Return the buckets of all synchronized backward passes of `step`. `trace`: its trace, if profiled."""
    if not fits(modules, step):
        return ()
    seen = _from_trace(modules, step, trace) if trace is not None else _from_record(step)
    passes_so_far: Counter[int] = Counter()
    rows = []
    for place, one in enumerate(step.passes):
        for index, parameters in enumerate(modules[one.module].buckets):
            times = seen.get((place, index), (None, None, None))
            rows.append(_bucket_step(step.number, one, passes_so_far[one.module], index, parameters, times))
        passes_so_far[one.module] += 1
    return tuple(sorted(rows, key=lambda row: (row.module, row.pass_index, row.index)))


_Times = tuple[int | None, int | None, int | None]


def _bucket_step(
    number: int, one: BackwardPass, pass_index: int, index: int, parameters: Sequence[int], times: _Times
) -> BucketStep:
    origin, (launched, started, finished) = one.origin_ns, times
    known = sorted((ns, parameter) for parameter in parameters if (ns := one.ready_ns[parameter]) is not None)
    return BucketStep(
        step=number,
        module=one.module,
        index=index,
        origin_ns=origin,
        first_ready_ns=known[0][0] - origin if known else None,
        ready_ns=known[-1][0] - origin if known else None,
        launched_ns=_since(launched, origin),
        started_ns=_since(started, origin),
        finished_ns=_since(finished, origin),
        last_parameter=known[-1][1] if known else None,
        previous_ready_ns=known[-2][0] - origin if len(known) > 1 else None,
        pass_index=pass_index,
    )


def fits(modules: Sequence[DdpModule], step: RecordedStep) -> bool:
    """Return whether all backward passes of `step` are consistent with these modules."""
    return all(pass_fits(modules, one) for one in step.passes)


def pass_fits(modules: Sequence[DdpModule], one: BackwardPass) -> bool:
    """Return whether the pass belongs to these modules. A killed rank may not have recorded all modules."""
    return 0 <= one.module < len(modules) and len(one.ready_ns) == len(modules[one.module].parameters)


def _since(time_ns: int | None, origin: int) -> int | None:
    return None if time_ns is None else time_ns - origin


def _from_record(step: RecordedStep) -> dict[tuple[int, int], _Times]:
    return {
        (place, bucket.index): (bucket.launched_ns, None, bucket.finished_ns)
        for place, one in enumerate(step.passes)
        for bucket in one.buckets
    }


def _from_trace(modules: Sequence[DdpModule], step: RecordedStep, trace: Trace) -> dict[tuple[int, int], _Times]:
    comm, epoch = trace.collectives, trace.epoch_ns
    if epoch is None:
        return {}
    return {
        bucket: (
            int(comm.launched_ns[row]) + epoch if comm.launched_ns[row] != UNKNOWN else None,
            int(comm.start_ns[row]) + epoch,
            int(comm.end_ns[row]) + epoch,
        )
        for bucket, row in bucket_rows(modules, step, trace).items()
    }


def bucket_rows(modules: Sequence[DdpModule], step: RecordedStep, trace: Trace) -> dict[tuple[int, int], int]:
    """Return the row of each bucket's all-reduce. Keys are (position of the backward pass in the step, bucket index).

    Buckets and all-reduces are paired in launch order. If the backward pass has other all-reduces, such as
    SyncBatchNorm's, only all-reduces launched by gradient hooks are used. The result is empty if the numbers of these
    all-reduces and of the buckets still differ, for example because a comm hook calls several collectives per bucket.
    """
    numbers = [s.number for s in trace.steps]
    if step.number not in numbers or not fits(modules, step):
        return {}
    index, expected = numbers.index(step.number), _expected(modules, step)
    rows = all_reduces_of_backward(trace, index)
    if len(rows) != len(expected):
        rows = launched_by_hooks(trace, rows)
    if len(rows) != len(expected):
        return {}
    pairs = zip(rows.tolist(), expected, strict=True)
    return {(place, bucket): row for row, (place, bucket) in pairs if bucket is not None}


def _expected(modules: Sequence[DdpModule], step: RecordedStep) -> list[tuple[int, int | None]]:
    """Return (position of the pass, index of the bucket) for each collective of the reducer, in launch order.

    The index is ``None`` for the bitmap of used parameters, which is reduced after the last bucket.
    """
    expected: list[tuple[int, int, int | None]] = []
    for place, one in enumerate(step.passes):
        latest, settings = 0, modules[one.module].settings
        for index, parameters in enumerate(modules[one.module].buckets):
            latest = max([latest, *(ns for p in parameters if (ns := one.ready_ns[p]) is not None)])
            expected.append((latest, place, index))
        if settings.get("find_unused_parameters") and not settings.get("static_graph"):
            expected.append((latest, place, None))
    in_order = sorted(expected, key=lambda one: one[0])
    return [(place, bucket) for _, place, bucket in in_order]


SMALL_BYTES = 64 * 1024
"""up to this size in bytes, the time of a collective is mostly latency, and the collective probably carries a metric"""

_OF_32_BIT_INTEGERS = re.compile(r"_(?:u?int|[iu])32(?:_t)?(?![a-z0-9])", re.IGNORECASE)
"""pattern for names like ncclKernel_AllReduce_RING_LL_Sum_int32_t(…) and ncclDevKernel_AllReduce_Sum_u32_RING_LL(…)"""
_OF_TORCH = (Mark.FORWARD, Mark.BUCKET_COPY_IN, Mark.BUCKET_COPY_OUT, Mark.DATA_PARALLEL, Mark.SHARDED)
_OF_SHARDS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)


def gradient_all_reduces(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the all-reduces of gradient buckets, in launch order."""
    rows = all_reduces_of_backward(trace)
    if len(rows):
        is_integer = np.array([bool(_OF_32_BIT_INTEGERS.search(name)) for name in trace.names], np.bool_)
        rows = rows[~is_integer[trace.collectives.name[rows]]]
    return launched_by_hooks(trace, rows)


def all_reduces_of_backward(trace: Trace, step: int | None = None) -> NDArray[np.int64]:
    """Return the rows of all-reduces launched by backward passes, in launch order.

    `step`: return only rows of this step.
    """
    comm = trace.collectives
    is_known = comm.launched_ns != UNKNOWN
    chosen = (comm.kind == CollectiveKind.ALL_REDUCE) & (comm.phase == Phase.BACKWARD)
    if is_known.any():
        chosen &= is_known
    rows = np.flatnonzero(chosen if step is None else chosen & (comm.step == step))
    return rows[np.argsort(comm.asked_ns[rows], kind="stable")]


def launched_by_hooks(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the `rows` launched by gradient hooks; all rows if the trace has no hooks or no launch times."""
    marks, hooks, launched_ns = trace.host_spans, gradient_hooks(trace), trace.collectives.launched_ns[rows]
    if not len(hooks) or (launched_ns == UNKNOWN).all():
        return rows
    spans = union_of(marks, hooks)
    return rows[spans.contains(launched_ns)]


def reduces_without_ddp(trace: Trace) -> bool:
    """Return whether gradient hooks, such as Apex's, reduce gradients without DDP.

    Returns False if the trace has spans of DDP or FSDP, if the backward pass also has collectives on shards, or if
    hooks reduce only small tensors. Libraries that launch collectives from a separate thread are not detected.
    """
    comm = trace.collectives
    if np.isin(trace.host_spans.mark, _OF_TORCH).any() or not len(gradient_hooks(trace)):
        return False
    if (np.isin(comm.kind, _OF_SHARDS) & (comm.phase == Phase.BACKWARD)).any():
        return False
    sizes = comm.num_bytes[gradient_all_reduces(trace)]
    return bool(((sizes == UNKNOWN) | (sizes > SMALL_BYTES)).any())


def gradient_hooks(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of gradient hooks in the host spans."""
    marks = trace.host_spans
    is_hook = np.array([name.endswith(HOOK_NODE) for name in trace.names], np.bool_)
    return np.flatnonzero((marks.mark == Mark.BACKWARD) & is_hook[marks.name])


def launched_in(trace: Trace, step: int) -> NDArray[np.bool_]:
    """Return a mask over the collectives: True for each collective of the step that has a known launch."""
    comm = trace.collectives
    return np.asarray((comm.step == step) & (comm.launched_ns != UNKNOWN))


def calls_in_backward(trace: Trace, step: int) -> NDArray[np.int64]:
    """Return the rows of collectives that layers call in the backward pass, launched by autograd nodes.

    There are none if the trace has no gradient hooks, or if FSDP is used.
    """
    comm, hooks = trace.collectives, gradient_hooks(trace)
    if not len(hooks) or (trace.host_spans.mark == Mark.SHARDED).any():
        return np.empty(0, np.int64)
    by_hook = union_of(trace.host_spans, hooks).contains(comm.launched_ns)
    by_node = marked_spans(trace, Mark.BACKWARD).contains(comm.launched_ns)
    return np.flatnonzero(launched_in(trace, step) & (comm.phase == Phase.BACKWARD) & by_node & ~by_hook)


def bucket_steps(rank: Rank, modules: Sequence[DdpModule]) -> list[BucketStep]:
    """Return the buckets in profiled steps if the rank has any, otherwise in lightly recorded steps."""
    if rank.record is None:
        return []
    wanted = StepMode.PROFILED if rank.trace is not None and rank.trace.steps else StepMode.LIGHT
    steps = [step for step in rank.record.steps if step.mode is wanted]
    trace = rank.trace if wanted is StepMode.PROFILED else None
    return [row for step in steps for row in measure_buckets(modules, step, trace)]


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One bucket as shown in the report; unknown values are ``None``."""

    module: Annotated[int, Number("index of the DDP module")]
    index: Annotated[int, Number("index of the bucket, in the order of launch", column="bucket")]
    num_bytes: Annotated[int | None, Number("size of the bucket", column="size_bytes")]
    num_parameters: Annotated[int | None, Number("number of parameter tensors in the bucket")]
    first_parameter: Annotated[str | None, Number("name of the bucket's first parameter")]
    last_parameter: Annotated[str | None, Number("name of the bucket's last parameter")]
    first_ready_ns: Annotated[int | None, Number("when the bucket's first gradient was ready", HOST)]
    ready_ns: Annotated[int | None, Number("when the bucket's last gradient was ready", HOST)]
    launched_ns: Annotated[int | None, Number("when DDP launched its all-reduce", HOST)]
    started_ns: Annotated[int | None, Number("when the all-reduce started", DEVICE)]
    finished_ns: Annotated[int | None, Number("when the all-reduce finished", DEVICE)]
    transfer_ns: Annotated[int | None, Number("duration of the all-reduce without waiting", DEVICE)]
    slowest_parameter: Annotated[str | None, Number("parameter whose gradient was ready last in most steps")]
    slowest_parameter_delay_ns: Annotated[
        int | None, Number(("time between the second-to-last gradient and the last gradient"), HOST)
    ]
    late_rank: Annotated[int | None, Number("rank that launched last in most steps")]
    """the late rank is ``None`` if there is only one rank, or if the ranks are on several hosts, whose clocks differ"""
    late_by_ns: Annotated[int | None, Number("time from the first rank's launch to the last rank's launch", HOST)]
    num_passes: Annotated[int, Number("number of times the bucket is sent per step")] = 1
    """median number of synchronized backward passes through the module per step; every bucket is sent once in
    each pass
    """


def summarize_buckets(
    modules: Sequence[DdpModule], ranks: Mapping[int, Sequence[BucketStep]], one_clock: bool
) -> tuple[BucketRow, ...]:
    """Summarize all buckets.

    `ranks`: the buckets in each step, by rank. `one_clock`: whether all ranks run on one host.
    """
    keys = sorted({(row.module, row.index) for rows in ranks.values() for row in rows})
    return tuple(_summarize(modules[key[0]], key, ranks, one_clock) for key in keys)


def _summarize(
    module: DdpModule, key: tuple[int, int], ranks: Mapping[int, Sequence[BucketStep]], one_clock: bool
) -> BucketRow:
    parameters = module.buckets[key[1]]
    return BucketRow(
        **summarize_times(key, ranks, one_clock, [parameter.name for parameter in module.parameters]),
        num_bytes=module.bucket_bytes(key[1]),
        num_parameters=len(parameters),
        first_parameter=module.parameters[parameters[0]].name,
        last_parameter=module.parameters[parameters[-1]].name,
    )


def summarize_times(
    key: tuple[int, int], ranks: Mapping[int, Sequence[BucketStep]], one_clock: bool, parameters: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the fields of a `BucketRow` that are derived from times.

    `key`: module and bucket index. `parameters`: names of the module's parameters.
    """
    mine = {rank: [row for row in rows if (row.module, row.index) == key] for rank, rows in ranks.items()}
    rows = [row for rank_rows in mine.values() for row in rank_rows]
    slowest = Counter(row.last_parameter for row in rows if row.last_parameter is not None).most_common(1)
    late_rank, late_by = _latest(mine) if one_clock else (None, None)
    delays = [
        row.ready_ns - row.previous_ready_ns
        for row in rows
        if row.ready_ns is not None and row.previous_ready_ns is not None
    ]
    return {
        "module": key[0],
        "index": key[1],
        "first_ready_ns": median_known([row.first_ready_ns for row in rows]),
        "ready_ns": median_known([row.ready_ns for row in rows]),
        "launched_ns": median_known([row.launched_ns for row in rows]),
        "started_ns": median_known([row.started_ns for row in rows]),
        "finished_ns": median_known([row.finished_ns for row in rows]),
        "transfer_ns": _transfer(mine),
        "slowest_parameter": parameters[slowest[0][0]] if slowest else None,
        "slowest_parameter_delay_ns": median_known(delays),
        "late_rank": late_rank,
        "late_by_ns": late_by,
        "num_passes": _num_passes(mine),
    }


def _num_passes(ranks: Mapping[int, Sequence[BucketStep]]) -> int:
    per_step = [num for rows in ranks.values() for num in Counter(row.step for row in rows).values()]
    return round(median(per_step)) if per_step else 1


def _by_pass(ranks: Mapping[int, Sequence[BucketStep]]) -> dict[tuple[int, int], dict[int, BucketStep]]:
    """Return the bucket in each backward pass on each rank. Keys are (step, backward pass), and then the rank."""
    passes: dict[tuple[int, int], dict[int, BucketStep]] = {}
    for rank, rows in ranks.items():
        for row in rows:
            passes.setdefault((row.step, row.pass_index), {})[rank] = row
    return passes


def _transfer(ranks: Mapping[int, Sequence[BucketStep]]) -> int | None:
    shortest = []
    for rows in _by_pass(ranks).values():
        known = [
            row.finished_ns - row.started_ns
            for row in rows.values()
            if row.finished_ns is not None and row.started_ns is not None
        ]
        if known:
            shortest.append(min(known))
    return round(median(shortest)) if shortest else None


def _latest(ranks: Mapping[int, Sequence[BucketStep]]) -> tuple[int | None, int | None]:
    last: Counter[int] = Counter()
    by = []
    for rows in _by_pass(ranks).values():
        launches = {r: row.origin_ns + row.launched_ns for r, row in rows.items() if row.launched_ns is not None}
        if len(launches) == len(ranks) > 1:
            last[max(launches, key=lambda r: launches[r])] += 1
            by.append(max(launches.values()) - min(launches.values()))
    return (last.most_common(1)[0][0], round(median(by))) if by else (None, None)
