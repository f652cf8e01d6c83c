"""Made-up runs of many ranks, steps and kernels, with which a page must stay usable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from reports import rank, report, step
from tables import collective, ints, run, trace

from ddpprof.model import UNKNOWN, Kernel, Phase, Rank, Run, Trace, Work
from ddpprof.report import Report, StepReport

_STEP_NS, _GAP_NS = 100_000_000, 5_000
_BUCKETS = 5


_NAMES = tuple(f"void at::native::kernel_{index}<float>(int)" for index in range(50))


def kernel_run(num_ranks: int, num_steps: int, num_kernels: int, names: tuple[str, ...] = _NAMES) -> Run:
    """On GPUs: each step runs as many kernels, and five all-reduces beside the second half of them."""
    made = (_trace(number, num_ranks, num_steps, num_kernels, names) for number in range(num_ranks))
    return run(*(Rank(number, one, None) for number, one in enumerate(made)))


def _trace(number: int, num_ranks: int, num_steps: int, num_kernels: int, names: tuple[str, ...]) -> Trace:
    starts = [index * _STEP_NS for index in range(num_steps)]
    comm = [
        collective(begin, begin + 6_000_000 + 50_000 * number, step=index, num_bytes=(bucket + 1) << 20)
        for index, start in enumerate(starts)
        for bucket in range(_BUCKETS)
        for begin in [start + 45_000_000 + bucket * 8_000_000]
    ]
    empty = trace([(start, start + _STEP_NS) for start in starts], comm=comm, device="gpu", rank=number)
    return replace(
        empty, compute=_work(starts, num_kernels, len(names)), names=names, kernels=tuple(map(Kernel, names)),
        world_size=num_ranks, backend="nccl", host=f"node{number // 8}",
    )  # fmt: skip


def _work(starts: list[int], num_kernels: int, num_names: int) -> Work:
    inside = np.arange(num_kernels, dtype=np.int64)
    each = 90_000_000 // num_kernels
    start = np.concatenate([begin + inside * each for begin in starts])
    phase = np.select([inside < num_kernels // 3, inside < num_kernels * 9 // 10], [Phase.FORWARD, Phase.BACKWARD], 4)
    steps = len(starts)
    kind = np.tile(inside % num_names, steps).astype(np.int32)
    return Work(
        start_ns=start, end_ns=start + each - _GAP_NS, name=kind, phase=np.tile(phase, steps).astype(np.int8),
        step=np.repeat(np.arange(steps), num_kernels).astype(np.int32), lane=ints([7] * len(start)), kernel=kind.copy(),
        launched_ns=start - 10_000, device=ints([UNKNOWN] * len(start), np.int32),
    )  # fmt: skip


def thousand_ranks(num_ranks: int = 1000, num_steps: int = 3) -> Report:
    """Rank 700 computes longest, so that all others wait for it."""
    made = report()
    ranks = (
        rank(number, *(_step(number, 10 + index) for index in range(num_steps)), host=f"node{number // 8}")
        for number in range(num_ranks)
    )
    job = replace(made.job, world_size=num_ranks, num_ranks_read=num_ranks)
    return replace(made, job=job, ranks=tuple(ranks))


def _step(number: int, index: int) -> StepReport:
    own = 48_000 + (number * 37) % 500 + (9_000 if number == 700 else 0)
    return step(index, own, 70_000 - own, 2_000, 1_000, 400)
