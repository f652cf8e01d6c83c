"""Traces that several processes decode, and whether two of them read the same."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from random_traces import Event

from ddpprof.load.kineto.decode import Division

SMALL = Division(batch_bytes=300, batches_per_group=2, first_groups=1, worth_sharing_bytes=0, bytes_per_helper=1)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            assert_same(mine, its)
    elif is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other


def written(folder: Path, events: Sequence[Event | str]) -> Path:
    path = folder / "trace.json.gz"
    texts = [event if isinstance(event, str) else event.text() for event in events]
    keys = '{"distributedInfo": {"rank": 3}, "traceEvents": ['
    path.write_bytes(gzip.compress((keys + ", ".join(texts) + '], "host_name": "node"}').encode()))
    return path


def kernels(number: int) -> list[Event]:
    """With the calls that launch them, which stand before all of them."""
    launches = [
        Event("cuda_runtime", "cudaLaunchKernel", 100 * i, 100 * i + 9, 1, {"correlation": i + 1})
        for i in range(number)
    ]
    work = [
        Event("kernel", f"gemm_{i % 7}", 100 * i + 20, 100 * i + 80, 7,
              {"stream": 7, "correlation": i + 1, "grid": [i % 3, 1, 1], "block": [64, 1, 1]})
        for i in range(number)
    ]  # fmt: skip
    return [Event("user_annotation", "ProfilerStep#1", 0, 100 * number, 1), *launches, *work]


def ops(number: int) -> list[Event]:
    return [
        Event("cpu_op", f"aten::op{i % 5}", 100 * i, 100 * i + (90 if i % 3 else 350), f"thread {i % 2}")
        for i in range(number)
    ]
