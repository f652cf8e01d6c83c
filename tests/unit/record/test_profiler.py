"""The profiler over steps, its bounds, and the file that it writes."""

from __future__ import annotations

import gzip
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerator import emulate
from processes import wait_until
from torch.profiler import ProfilerActivity

from ddpprof import own_files
from ddpprof.record import profiler as profilers
from ddpprof.record.machine import TrainingDevice
from ddpprof.record.profiler import Bounds, StepProfiler, TraceFile, _activities
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
        clear_away(one)
    assert not torch.autograd._profiler_enabled()


def clear_away(profiler: StepProfiler) -> None:
    """As the training does after each step, until the device has come to rest."""
    wait_until(lambda: profiler.clear_away() or profiler.left is None, "cleared away")


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
    work()  # training continues
    with emulate():
        clear_away(profiler)
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
    assert (device.synchronized, profiler.running) == ([], False)


@pytest.fixture
def toggled_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Threads that switched the collection of a GPU's activities, in which Kineto waits for the device."""
    threads: list[str] = []
    original = torch._C._autograd._toggle_collection_dynamic

    def toggle(on: bool, activities: set[ProfilerActivity]) -> None:
        if ProfilerActivity.CUDA in activities:
            threads.append(threading.current_thread().name)
        original(on, activities)

    monkeypatch.setattr(torch._C._autograd, "_toggle_collection_dynamic", toggle)
    return threads


@pytest.mark.parametrize("how", ["abandon", "stop", "leave_out"])
def test_the_training_thread_never_waits_in_kineto_for_a_stuck_device(
    profiler: StepProfiler, toggled_by: list[str], how: str
) -> None:
    profiler.begin_step(7)
    began = time.monotonic()
    with emulate(blocks=True):
        {"abandon": profiler.abandon, "stop": lambda: profiler.stop(0.1), "leave_out": profiler.leave_out}[how]()
        work()
    assert time.monotonic() - began < 5
    assert "MainThread" not in toggled_by


def test_what_is_let_go_of_collects_nothing_more(profiler: StepProfiler, tmp_path: Path) -> None:
    profiler.begin_step(7)
    work(10)
    with emulate(blocks=True):
        profiler.stop(0.1)
    left = profiler.left
    work(100)
    with emulate():
        clear_away(profiler)
    work(1000)
    assert names(left, tmp_path / "trace.json").count("aten::ones") == 10


@pytest.mark.parametrize("act", [lambda one: one.leave_out(), lambda one: one.stop(0.1), lambda one: one.abandon()])
def test_during_the_capture_of_a_cuda_graph_nobody_waits_for_the_device(
    act: Any, profiler: StepProfiler, toggled_by: list[str]
) -> None:
    profiler.begin_step(7)
    with emulate() as device:
        profiler._device.is_captured = True
        act(profiler)
        profiler._device.is_captured = False
    assert (device.synchronized, toggled_by) == ([], [])


@pytest.mark.parametrize(("has_gpu", "toggled"), [(True, []), (False, ["MainThread"] * 2)])
def test_training_on_the_cpu_gets_no_context_on_a_gpu(
    has_gpu: bool, toggled: list[str], toggled_by: list[str], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr("ddpprof.record.profiler._has_gpu", lambda: has_gpu)
    one = StepProfiler(Settings("run"), TrainingDevice())
    one.prepare()
    one.begin_step(1)
    assert one.leave_out()
    one.end_step()
    one.begin_step(2)
    one.stop()
    assert toggled_by == toggled
    assert "Toggling" not in capfd.readouterr().err


def test_what_is_left_out_is_not_in_the_trace_and_the_next_step_is(profiler: StepProfiler, tmp_path: Path) -> None:
    with emulate():
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


def bounds(most_seconds: float = 100.0, most_bytes: int = 1 << 40) -> tuple[Bounds, list[float]]:
    asked: list[float] = []

    def leave_out() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 1  # at the first time it was within a backward pass

    return Bounds(leave_out, most_seconds, most_bytes), asked


def work_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def work_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        sum(range(100))


def test_a_step_that_does_not_end_is_left_out_once() -> None:
    one, asked = bounds(most_seconds=0.1)
    one.step_begins(profiled=False)
    one.step_ends(usual=True)
    one.step_begins(profiled=True)
    work_until(lambda: len(asked) == 2)
    work_for(0.2)
    one.end()
    assert len(asked) == 2


def test_a_usual_step_is_profiled_to_its_end() -> None:
    one, asked = bounds()
    one.step_begins(profiled=False)
    work_for(1.0)
    one.step_ends(usual=True)
    one.step_begins(profiled=True)
    held = bytearray(32 << 20)
    held[:: 1 << 12] = b"x" * (len(held) >> 12)
    work_for(0.1)
    one.step_ends(usual=True)
    work_for(0.3)
    one.end()
    assert asked == []
    assert one.exceeded() is None


def test_what_all_profiled_steps_may_take_is_bounded() -> None:
    one, _ = bounds(most_bytes=16 << 20)
    assert one.exceeded() is None
    one.step_begins(profiled=True)
    one.step_ends(usual=True)
    held = bytearray(64 << 20)
    held[:: 1 << 12] = b"x" * (len(held) >> 12)
    assert "--most-memory" in (one.exceeded() or "")
    one.end()
    late, _ = bounds(most_seconds=0.01)
    late.step_begins(profiled=True)
    late.step_ends(usual=True)
    time.sleep(0.05)
    assert "--most-seconds" in (late.exceeded() or "")
    late.end()


OTHER_DISK = Path("/dev/shm")


class Recorded:
    """Stands for what the profiler recorded."""

    def __init__(self, before: Callable[[], object] = lambda: None, fails: bool = False) -> None:
        self.before = before
        self.fails = fails
        self.path = Path()

    def export_chrome_trace(self, path: str) -> None:
        self.path = Path(path).resolve()
        self.before()
        if not self.fails:
            self.path.write_text(json.dumps({"traceEvents": []}))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_trace_is_written_while_training_goes_on(tmp_path: Path) -> None:
    goes_on = threading.Event()
    trace = TraceFile(tmp_path, 3)
    trace.write(Recorded(lambda: goes_on.wait(10)))  # type: ignore[arg-type]
    assert files(tmp_path) == []
    time.sleep(0.05)
    goes_on.set()
    trace.finish(1.0, [])
    ((began_ns, end_ns),) = trace.pauses
    assert 45_000_000 < end_ns - began_ns < 5_000_000_000
    assert files(tmp_path) == ["rank-3.trace.json.gz"]
    assert json.loads(gzip.decompress((tmp_path / "rank-3.trace.json.gz").read_bytes())) == {"traceEvents": []}


@pytest.mark.skipif(not OTHER_DISK.is_dir(), reason="there is no second file system")
def test_where_the_run_lies_elsewhere_this_nodes_disk_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if OTHER_DISK.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    monkeypatch.setattr(profilers, "_LOCAL_DISK_BYTES", 1 << 20)
    with tempfile.TemporaryDirectory(dir=OTHER_DISK) as local:
        monkeypatch.setattr(tempfile, "tempdir", local)
        Path(local, own_files.part_name("ddpprof")).mkdir()  # as a process that was killed leaves it
        recorded, trace = Recorded(), TraceFile(tmp_path, 0)
        trace.write(recorded)  # type: ignore[arg-type]
        trace.finish(1.0, [])
        assert recorded.path.is_relative_to(local)
        assert files(Path(local)) == []
    assert files(tmp_path) == ["rank-0.trace.json.gz"]


def test_a_job_that_is_asked_to_end_does_not_wait_for_long(tmp_path: Path) -> None:
    goes_on = threading.Event()
    trace = TraceFile(tmp_path, 0)
    trace.write(Recorded(lambda: goes_on.wait(20)))  # type: ignore[arg-type]
    began = time.monotonic()
    trace.finish(0.2, [15])
    assert time.monotonic() - began < 5
    goes_on.set()


@pytest.mark.parametrize("fails", ["writes-nothing", "raises"])
def test_what_goes_wrong_is_raised_at_the_end_and_leaves_nothing(fails: str, tmp_path: Path) -> None:
    def full() -> Any:
        raise OSError(28, "No space left on device")

    trace = TraceFile(tmp_path, 0)
    trace.write(Recorded(full if fails == "raises" else lambda: None, fails=True))  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"No space left|could not write"):
        trace.finish(1.0, [])
    assert files(tmp_path) == []
