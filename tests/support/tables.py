"""Tables and reports built by hand, for tests of their users. Times are small integers, in nanoseconds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddpprof.model import (
    UNKNOWN,
    BackwardPass,
    BucketTimes,
    CollectiveKind,
    Collectives,
    DdpModule,
    Forward,
    HostSpans,
    Kernel,
    Mark,
    Parameter,
    Phase,
    Rank,
    Record,
    RecordedStep,
    Run,
    Step,
    StepMode,
    Trace,
    Work,
)
from ddpprof.topics.idle import Idle, find_gaps, measure_idle
from ddpprof.topics.steps.breakdown import Breakdown, split_step

Op = tuple[int, int, Phase, int] | tuple[int, int, Phase, int, int] | tuple[int, int, Phase, int, int, int]
"""start, end, phase, step; then the kernel's index (default 0) and its launch (default: its start)"""


def ints(values: Sequence[int], dtype: Any = np.int64) -> Any:
    return np.array(values, dtype=dtype)


def work(*rows: Op) -> Work:
    whole = [(*row, *(0, row[0])[len(row) - 4 :]) for row in sorted(rows)]
    start, end, phase, step, kernel, launched = zip(*whole, strict=True) if rows else ((), (), (), (), (), ())
    zeros = [0] * len(rows)
    return Work(
        ints(start), ints(end), ints(zeros, np.int32), ints(phase, np.int8), ints(step, np.int32), ints(zeros),
        ints(kernel, np.int32), ints(launched), ints([UNKNOWN] * len(rows), np.int32),
    )  # fmt: skip


def collective(
    start: int,
    end: int,
    phase: Phase = Phase.BACKWARD,
    step: int = 0,
    launched: int | None = None,
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    num_bytes: int = UNKNOWN,
    name: int = 0,
) -> dict[str, int]:
    """Make a collective, which by default is launched where it starts."""
    return {
        "start": start, "end": end, "phase": phase, "step": step, "kind": kind, "num_bytes": num_bytes, "name": name,
        "launched": start if launched is None else launched,
    }  # fmt: skip


def collectives(*rows: dict[str, int]) -> Collectives:
    rows = tuple(sorted(rows, key=lambda row: row["start"]))
    zeros, unknown = [0] * len(rows), [UNKNOWN] * len(rows)
    names = ("start", "end", "phase", "step", "kind", "launched", "num_bytes", "name")
    column = {name: [row[name] for row in rows] for name in names}
    return Collectives(
        start_ns=ints(column["start"]),
        end_ns=ints(column["end"]),
        name=ints(column["name"], np.int32),
        phase=ints(column["phase"], np.int8),
        step=ints(column["step"], np.int32),
        lane=ints(zeros),
        kind=ints(column["kind"], np.int8),
        launched_ns=ints(column["launched"]),
        num_bytes=ints(column["num_bytes"]),
        group=ints(unknown, np.int32),
        sequence=ints(unknown),
        device=ints(unknown, np.int32),
    )


def marks(*rows: tuple[Mark, int, int, int] | tuple[Mark, int, int, int, int]) -> HostSpans:
    """mark, start, end, step; then the index of the name (default 0)"""
    whole = [(*row, 0)[:5] for row in sorted(rows, key=lambda row: row[1])]
    mark, start, end, step, name = zip(*whole, strict=True) if rows else ((), (), (), (), ())
    return HostSpans(
        ints(start), ints(end), ints(mark, np.int8), ints(name, np.int32), ints(step, np.int32), ints([0] * len(rows))
    )  # fmt: skip


def trace(
    steps: Sequence[tuple[int, int] | tuple[int, int, int]] = ((0, 100),),
    compute: Sequence[Op] = (),
    comm: Sequence[dict[str, int]] = (),
    copies: Sequence[Op] = (),
    host: Sequence[tuple[Mark, int, int, int] | tuple[Mark, int, int, int, int]] = (),
    device: str = "cpu",
    epoch: int | None = 0,
    **changes: Any,
) -> Trace:
    """Steps are numbered from 10; a third number is the profiler's window."""
    given = {
        "backend": "gloo", "rank": 0, "world_size": 1, "host": None, "names": ("x",), "notes": (),
        "kernels": (Kernel("x"),), "groups": (), **changes,
    }  # fmt: skip
    return Trace(
        device=device,
        epoch_ns=epoch,
        steps=tuple(Step(10 + index, *span) for index, span in enumerate(steps)),
        compute=work(*compute),
        copies=work(*copies),
        collectives=collectives(*comm),
        host_spans=marks(*host),
        **given,
    )


def ddp_module(
    sizes: Sequence[int] = (4, 4), buckets: Sequence[Sequence[int]] = ((1,), (0,)), name: str = "Net", **changes: Any
) -> DdpModule:
    """Parameters ``p0``, ``p1``, … of the given sizes in bytes; further settings of DDP by name."""
    facts = {
        "comm_hook": None, "num_buffers": 0, "buffer_bytes": 0, "num_batch_norms": 0, "unused": None,
        "graph_is_static": None, "num_searched_passes": 0, "num_lacking_passes": None,
        "num_buffers_of_batch_norms": None,
    }  # fmt: skip
    facts |= {key: changes.pop(key) for key in list(changes) if key in facts}
    return DdpModule(
        name=name,
        settings={"bucket_cap_mb": 25.0, **changes},
        parameters=tuple(Parameter(f"p{index}", size) for index, size in enumerate(sizes)),
        buckets=tuple(map(tuple, buckets)),
        **facts,
    )


def breakdown_of(made: Trace, step: int) -> Breakdown | None:
    split = split_step(made, step)
    return None if split is None else split.breakdown


def forward(start: int = 0, inner: int = 2, inner_end: int = 10, end: int = 11, **changes: Any) -> Forward:
    given = {"module": 0, "buffer_sync_ns": 0, "rebuild_ns": 0, "synchronizes": True, **changes}
    return Forward(start_ns=start, inner_start_ns=inner, inner_end_ns=inner_end, end_ns=end, **given)


def recorded(
    number: int = 10,
    start: int = 0,
    end: int = 100,
    mode: str = "profiled",
    ready: Mapping[int, Sequence[int | None]] | None = None,
    **changes: Any,
) -> RecordedStep:
    """`ready`: of one backward pass of each module; `buckets`: module, index, launch and finish in it."""
    given = {"data_ns": 0, "forwards": (forward(),), **changes}
    buckets = given.pop("buckets", ())
    origins = {one.module: one.inner_end_ns for one in given["forwards"] if one.synchronizes}
    passes = [
        backward_pass(row, origins.get(module, 10), module, [timed for of, *timed in buckets if of == module])
        for module, row in (ready or {}).items()
        if module in origins or all(one.module != module for one in given["forwards"])
    ]
    return RecordedStep(
        number=number, mode=StepMode(mode), start_ns=start, end_ns=end, **{"passes": tuple(passes), **given}
    )


def backward_pass(
    ready: Sequence[int | None],
    origin: int = 10,
    module: int = 0,
    buckets: Sequence[Sequence[int | None]] = (),
    adds_up: bool = False,
) -> BackwardPass:
    return BackwardPass(module, origin, tuple(ready), tuple(BucketTimes(*bucket) for bucket in buckets), adds_up)


def record(
    rank: int = 0, modules: Sequence[DdpModule] = (), steps: Sequence[RecordedStep] = (), **changes: Any
) -> Record:
    given = {
        "world_size": 2, "local_rank": rank, "host": "node", "pid": 7, "device": "cpu", "backend": "gloo",
        "torch": "2.13", "loaders": (), "checkpoints": (), "profiler_pause_ns": None, "ended": "finished", **changes,
    }  # fmt: skip
    return Record(rank=rank, modules=tuple(modules), steps=tuple(steps), **given)


def run(*ranks: Rank, **changes: Any) -> Run:
    given = {"name": "run", "command": ("train.py",), "world_size": len(ranks), **changes}
    return Run(ranks=ranks, **given)


def idle_of(made: Trace, step: int) -> Idle | None:
    """Return why the accelerator idled in a step; ``None`` on CPU, and if the step has no work."""
    split, gaps = split_step(made, step), find_gaps(made)
    return None if split is None or gaps is None else measure_idle(split.idle, gaps)
