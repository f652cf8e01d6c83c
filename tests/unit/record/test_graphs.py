"""CUDA graphs, as far as they can be had without CUDA: what is captured and replayed is nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerator import Device, emulate
from torch.nn.parallel import DistributedDataParallel

import ddpprof


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Device]:
    monkeypatch.chdir(tmp_path)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    for name in ("capture_begin", "capture_end", "replay"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, lambda *_: None)
    with emulate() as one:
        yield one
    dist.destroy_process_group()


class Training:
    def __init__(self) -> None:
        self.model = DistributedDataParallel(torch.nn.Linear(8, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 8)).sum().backward()
        self.optimizer.step()


def modes() -> list[str]:
    return [json.loads(line)["mode"] for line in Path("run/rank-0.steps.jsonl").read_text().splitlines()]


SHORT: dict[str, Any] = {"skip_first": 11, "cost_steps": 2, "warmup": 1, "steps": 4}


def test_no_step_ends_while_a_graph_is_captured(device: Device) -> None:
    with ddpprof.profile("run", **SHORT):
        training = Training()
        for step in range(20):
            if step in (10, 12, 13, 17):  # after each of these something would wait for the device
                captured, waited = object(), len(device.synchronised)
                torch.cuda.CUDAGraph.capture_begin(captured)
                training.step()
                profiled = torch.autograd._profiler_enabled()
                assert (len(device.synchronised), profiled) == (waited, step == 17)
                torch.cuda.CUDAGraph.capture_end(captured)
            else:
                training.step()
    assert modes() == ["off", "light", *["profiled"] * 4]
    assert Path("run/rank-0.trace.json.gz").stat().st_size


@pytest.mark.parametrize("in_each_step", [0, 4])
def test_replays_that_hide_steps_end_the_profiled_ones(
    in_each_step: int, device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed = object()
    with ddpprof.profile("run", **SHORT):
        training = Training()
        for _ in range(16):
            training.step()
            for _ in range(in_each_step):
                torch.cuda.CUDAGraph.replay(replayed)
        assert torch.autograd._profiler_enabled()
        for _ in range(3 * max(1, in_each_step)):
            torch.cuda.CUDAGraph.replay(replayed)
        assert not torch.autograd._profiler_enabled()
    assert "replays a CUDA graph" in capsys.readouterr().err
    assert modes() == ["off", "light", "profiled", "profiled"]
    assert Path("run/rank-0.trace.json.gz").stat().st_size


def test_a_training_that_is_one_graph_is_told_so(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    replayed = object()
    with ddpprof.profile("run", **SHORT):
        training = Training()
        for _ in range(3):
            training.step()
        for _ in range(50):
            torch.cuda.CUDAGraph.replay(replayed)
    assert "replayed CUDA graphs 50 times" in capsys.readouterr().err
