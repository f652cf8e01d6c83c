"""When is each gradient bucket ready, launched, started, finished, and which parameter kept it waiting?

    ready     its last gradient is accumulated (torch's `get_backward_stats`)
    launched  the reducer hands its all-reduce to the backend: strictly in index order, so not before its predecessors
    started, finished   the collective itself, from the trace

Times count from the end of the DDP forward, where the reducer's own clock starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.events import (
    UNKNOWN,
    CollectiveKind,
    DdpModule,
    Phase,
    RecordedStep,
    Trace,
)


@dataclass(frozen=True, slots=True)
class BucketStep:
    """One bucket in one step of one rank. Nanoseconds since the end of the DDP forward."""

    step: int
    module: int
    index: int
    origin_ns: int
    """end of the DDP forward, since 1970"""
    first_ready_ns: int | None
    """when its first gradient was accumulated"""
    ready_ns: int | None
    launched_ns: int | None
    started_ns: int | None
    finished_ns: int | None
    last_parameter: int | None
    """reducer index of the parameter whose gradient came last"""
    previous_ready_ns: int | None
    """when the last but one of its gradients was accumulated"""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A collective that the reducer must have launched."""

    module: int
    bucket: int | None
    """``None``: the map of used parameters, reduced after the last bucket"""
    ready_ns: int


def measure_buckets(modules: Sequence[DdpModule], step: RecordedStep, trace: Trace | None) -> tuple[BucketStep, ...]:
    """Every bucket of every module that synchronised in `step`, which lies in `trace` if it was profiled."""
    if not fits(modules, step):
        return ()
    origins = {f.module: f.inner_end_ns for f in step.forwards if f.synchronises}
    seen = _from_trace(modules, step, trace) if trace is not None else _from_record(step)
    rows = []
    for module, ready in sorted(step.ready_ns.items()):
        origin = origins.get(module)
        if origin is None:
            continue
        for index, parameters in enumerate(modules[module].buckets):
            known = sorted((t, p) for p in parameters if (t := ready[p]) is not None)
            launched, started, finished = seen.get((module, index), (None, None, None))
            rows.append(
                BucketStep(
                    step=step.number,
                    module=module,
                    index=index,
                    origin_ns=origin,
                    first_ready_ns=known[0][0] - origin if known else None,
                    ready_ns=known[-1][0] - origin if known else None,
                    launched_ns=_since(launched, origin),
                    started_ns=_since(started, origin),
                    finished_ns=_since(finished, origin),
                    last_parameter=known[-1][1] if known else None,
                    previous_ready_ns=known[-2][0] - origin if len(known) > 1 else None,
                )
            )
    return tuple(rows)


def fits(modules: Sequence[DdpModule], step: RecordedStep) -> bool:
    """Whether `step` is of these modules: a rank that was killed may have left steps of some it never described."""
    return all(_fits_one(modules, module, ready) for module, ready in step.ready_ns.items())


def _fits_one(modules: Sequence[DdpModule], module: int, ready: Sequence[int | None]) -> bool:
    if not 0 <= module < len(modules):
        return False
    num_parameters = len(modules[module].parameters)
    in_buckets = (p for bucket in modules[module].buckets for p in bucket)
    return len(ready) == num_parameters and all(0 <= p < num_parameters for p in in_buckets)


_Times = tuple[int | None, int | None, int | None]


def _since(time_ns: int | None, origin: int) -> int | None:
    return None if time_ns is None else time_ns - origin


def _from_record(step: RecordedStep) -> dict[tuple[int, int], _Times]:
    return {(b.module, b.index): (b.launched_ns, None, b.finished_ns) for b in step.buckets}


def _from_trace(modules: Sequence[DdpModule], step: RecordedStep, trace: Trace) -> dict[tuple[int, int], _Times]:
    comm, epoch = trace.collectives, trace.epoch_ns
    if epoch is None:
        return {}
    return {
        bucket: (int(comm.launched_ns[row]) + epoch, int(comm.start_ns[row]) + epoch, int(comm.end_ns[row]) + epoch)
        for bucket, row in bucket_rows(modules, step, trace).items()
    }


def bucket_rows(modules: Sequence[DdpModule], step: RecordedStep, trace: Trace) -> dict[tuple[int, int], int]:
    """Module and index of each bucket → the row of its all-reduce, in the order of their launches.

    Nothing is paired where the numbers differ: a comm hook that reduces in several collectives, say.
    """
    numbers = [s.number for s in trace.steps]
    if step.number not in numbers or not fits(modules, step):
        return {}
    comm = trace.collectives
    rows = np.flatnonzero(
        (comm.step == numbers.index(step.number))
        & (comm.phase == Phase.BACKWARD)
        & (comm.kind == CollectiveKind.ALL_REDUCE)
        & (comm.launched_ns != UNKNOWN)
    )
    rows = rows[np.argsort(comm.launched_ns[rows], kind="stable")]
    expected = _expected(modules, step)
    if len(rows) != len(expected):
        return {}
    pairs = zip(rows.tolist(), expected, strict=True)
    return {(bucket.module, bucket.bucket): row for row, bucket in pairs if bucket.bucket is not None}


def _expected(modules: Sequence[DdpModule], step: RecordedStep) -> list[_Expected]:
    expected = []
    for module, ready in step.ready_ns.items():
        latest = 0
        for index, parameters in enumerate(modules[module].buckets):
            latest = max([latest, *(t for p in parameters if (t := ready[p]) is not None)])
            expected.append(_Expected(module, index, latest))
        settings = modules[module].settings
        if settings.get("find_unused_parameters") and not settings.get("static_graph"):
            expected.append(_Expected(module, None, latest))
    return sorted(expected, key=lambda e: e.ready_ns)
