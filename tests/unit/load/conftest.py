"""Traces built by hand, with times in nanoseconds that are written in microseconds, and read in batches of any size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpprof.load import kineto
from ddpprof.load.file_bytes import Limits
from ddpprof.load.kineto import Header, read_trace
from ddpprof.load.kineto.columns import Columns
from ddpprof.load.kineto.decode import Division
from ddpprof.load.rank import load_trace
from ddpprof.model import Trace

TRAINING, AUTOGRAD, WORKER = 100, 200, 300
"""threads"""


class TraceBuilder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []
        self.keys: dict[str, Any] = {}

    def add(self, category: str, name: str, start: int, end: int, tid: Any = TRAINING, **args: Any) -> "TraceBuilder":
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, **times, "args": args})
        return self

    def step(self, number: int, start: int, end: int) -> "TraceBuilder":
        return self.add("user_annotation", f"ProfilerStep#{number}", start, end)

    def annotation(self, name: str, start: int, end: int, tid: int = TRAINING, **args: Any) -> "TraceBuilder":
        return self.add("user_annotation", name, start, end, tid, **args)

    def op(self, name: str, start: int, end: int, tid: int = TRAINING, **args: Any) -> "TraceBuilder":
        return self.add("cpu_op", name, start, end, tid, **args)

    def launch(
        self, correlation: int, start: int, tid: int = TRAINING, category: str = "cuda_runtime"
    ) -> "TraceBuilder":
        return self.add(category, "cudaLaunchKernel", start, start + 5, tid, correlation=correlation)

    def kernel(
        self, name: str, start: int, end: int, correlation: int = 0, stream: int = 7, **args: Any
    ) -> "TraceBuilder":
        return self.add("kernel", name, start, end, stream, stream=stream, correlation=correlation, **args)

    def window_end(self, time: int) -> "TraceBuilder":
        self.events.append({"ph": "i", "name": "Record Window End", "ts": time / 1000, "pid": "", "tid": ""})
        return self

    def text(self) -> str:
        return json.dumps({**self.keys, "traceEvents": self.events})

    def load(self) -> Trace:
        self.path.write_text(self.text())
        return load_trace(self.path)


@pytest.fixture
def trace(tmp_path: Path) -> TraceBuilder:
    return TraceBuilder(tmp_path / "trace.json")


@pytest.fixture(params=[7, 200, 1_000_000], ids="batch-{}".format)
def batch_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "DIVISION", Division(request.param, batches_per_group=2, first_groups=1))


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str | bytes], tuple[Header, Columns]]:
    def write_and_read(text: str | bytes, **limits: int) -> tuple[Header, Columns]:
        path = tmp_path / "trace.json"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_trace(path, Limits(**limits))

    return write_and_read
