"""`ddpprof netbench` on an accelerator: the device times collectives, and NCCL's word on shared GPUs is explained."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerator import emulate

from ddpprof.record import netbench

TAKES_MS = 0.1


class Stream:
    """A device on which each collective takes `TAKES_MS`, however long the host takes to launch it."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.launched = 0

    def start(self) -> Any:
        time.sleep(0.001)
        self.launched += 1
        self.now_ms += TAKES_MS
        return SimpleNamespace(wait=lambda: None)

    def event(self, **_: Any) -> Any:
        event = SimpleNamespace(at_ms=0.0)
        event.record = lambda: setattr(event, "at_ms", self.now_ms)
        event.elapsed_time = lambda end: end.at_ms - event.at_ms
        return event


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()
    monkeypatch.setattr(torch, "Event", made.event)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(netbench, "_from_all", lambda mine: [mine])
    return made


def measured(device: str, stream: Stream) -> list[Any]:
    bench = netbench._Bench(netbench.Plan("all_reduce", [4], None, 0.05), torch.device(device))
    with emulate():
        (times,) = bench._in_turns([[stream.start]])
    return times


def test_the_device_times_several_in_a_row(stream: Stream) -> None:
    times = measured("cuda", stream)
    assert {one.wall_ns for (one,) in times} == {100_000}
    assert stream.launched > netbench._MOST_IN_A_ROW * len(times)


def test_the_host_times_each_on_a_cpu(stream: Stream) -> None:
    times = measured("cpu", stream)
    assert min(one.wall_ns for (one,) in times) >= 1_000_000
    assert stream.launched <= len(times) + 3


@pytest.mark.parametrize("words", ["Duplicate GPU detected", "Multiple Ranks are using the same GPU/Partition"])
def test_ranks_that_share_a_gpu_are_told_so(words: str) -> None:
    error = RuntimeError(
        "NCCL error in: ProcessGroupNCCL.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details)\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        f"Last error:\n{words} : rank 1 and rank 0 both on CUDA device 1000"
    )
    said = netbench._in_one_line(error)
    assert said.startswith(f"two ranks use the same GPU, which NCCL does not support ({words})")
    assert "\n" not in said
    assert netbench._in_one_line(RuntimeError("a\nb")) == "a"
