"""The profiler over the steps: what it does where the device is stuck, and what it leaves out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerator import emulate

from ddpprof.record.device import TrainingDevice
from ddpprof.record.profiler import StepProfiler, _activities
from ddpprof.record.settings import Settings


@pytest.fixture
def profiler() -> Iterator[StepProfiler]:
    device = TrainingDevice()
    device.found([torch.device("cuda")])
    one = StepProfiler(Settings("run"), device)
    one.prepare()
    yield one
    with emulate():
        one.stop()
        one.clear_away()
    assert not torch.autograd._profiler_enabled()


def work(times: int = 1) -> None:
    for _ in range(times):
        torch.ones(3).add_(1)


def names(recorded: Any, path: Path) -> list[str]:
    recorded.export_chrome_trace(str(path))
    return [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]


def test_a_stuck_device_costs_the_trace_and_no_more(profiler: StepProfiler) -> None:
    profiler.begin_step(7)
    work()
    began = time.monotonic()
    with emulate(blocks=True):
        assert profiler.stop(patience_s=0.2) is None
        profiler.clear_away()
    assert time.monotonic() - began < 5
    assert not profiler.running
    work()  # training goes on
    with emulate():
        profiler.clear_away()
    assert not torch.autograd._profiler_enabled()  # so that the script may profile


def test_it_does_not_warm_up_beside_the_scripts_own() -> None:
    device, own = TrainingDevice(), torch.autograd.profiler.profile(use_kineto=True, use_cpu=True)
    one = StepProfiler(Settings("run"), device)
    one.another_prepares(own)
    own._prepare_trace()
    with pytest.raises(RuntimeError, match="the script's own profiler is running"):
        one.prepare()
    own._start_trace()
    work()
    own.__exit__(None, None, None)
    one.another_prepares(own)  # as with ``acc_events=True``, for another cycle
    with pytest.raises(RuntimeError, match="the script's own profiler is running"):
        StepProfiler(Settings("run"), device).prepare()  # that of a capture
    own.kineto_results = None  # which stands for those of the cycle
    one.prepare()
    assert one.running
    one.stop()


def test_after_a_failure_nothing_waits_for_the_device(profiler: StepProfiler) -> None:
    profiler.begin_step(7)
    with emulate(blocks=True) as device:
        profiler.abandon()
    assert (device.synchronised, profiler.running) == ([], False)


def test_what_is_left_out_is_not_in_the_trace_and_the_next_step_is(profiler: StepProfiler, tmp_path: Path) -> None:
    profiler.begin_step(1)
    work(10)
    assert profiler.leave_out()
    work(100)
    profiler.end_step()
    assert profiler.has_left_out
    profiler.begin_step(2)
    assert not profiler.has_left_out
    work(10)
    profiler.end_step()
    with emulate():
        recorded = profiler.stop()
    assert names(recorded, tmp_path / "trace.json").count("aten::ones") == 20


def test_nothing_is_left_out_within_a_backward_pass(profiler: StepProfiler) -> None:
    profiler.begin_step(1)
    x = torch.ones(3, requires_grad=True)
    said: list[bool] = []
    x.register_hook(lambda _: said.append(profiler.leave_out()))
    x.sum().backward()
    assert said == [False]


@pytest.mark.parametrize(("device", "expected"), [("cpu", ["CPU"]), ("cuda", ["CPU", "CUDA"]), ("mps", ["CPU"])])
def test_only_the_device_that_is_trained_on_is_profiled(
    device: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [activity.name for activity in _activities(device)] == expected
