"""The modes of steps, CUDA graphs that hide steps, and iterations in which torch waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerator import Device, emulate
from torch.nn.parallel import DistributedDataParallel

import ddpprof
from ddpprof.model import RecordedStep, StepMode
from ddpprof.record.ddp_construction import switch_ddp
from ddpprof.record.machine import TrainingDevice
from ddpprof.record.settings import Settings
from ddpprof.record.steps import Schedule
from ddpprof.record.window import Window


class Files:
    """Stands for the run directory: keeps what happens in order."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def append_step(self, step: RecordedStep) -> None:
        self.seen.append(step.mode)


class Job:
    rank, world_size = 0, 1

    def __init__(self, seen: list[str]) -> None:
        self.files = Files(seen)
        self.warn_for_all = seen.append

    def write_facts(self, *facts: object) -> None:
        pass


class Notes:
    modules: tuple[Any, ...] = ()

    def recorded_step(self, number: int, mode: StepMode, start_ns: int) -> RecordedStep:
        return RecordedStep(number=number, mode=mode, start_ns=start_ns, end_ns=0)

    def facts(self, _step: int) -> dict[str, Any]:
        return {}

    def begin_step(self, mode: object) -> None:
        pass

    def recording_begins(self, step: int) -> None:
        pass

    def end_step(self) -> None:
        pass

    def recording_ends(self, step: int) -> None:
        pass

    release_modules = end_step

    def __init__(self) -> None:
        self.device = TrainingDevice()
        self.device.found([torch.device("cuda", 1)])


@pytest.mark.parametrize(
    ("is_trial", "expected"),
    [
        (True, "wait off wait off wait without_ddp wait without_ddp"),  # a step is written when its wait is over
        (False, "off off without_ddp without_ddp"),
    ],
)
def test_a_trial_waits_for_an_accelerator_at_both_ends_of_a_block(
    monkeypatch: pytest.MonkeyPatch, is_trial: bool, expected: str
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: seen.append("wait"))
    blocks = {"skip_first": 1, "cost_steps": 0, "steps": 0, "profiler": False, "ddp_blocks": 1, "block_steps": 2}
    window = Window(Settings("run", trial=is_trial, **blocks), Job(seen), Notes())  # type: ignore[arg-type]
    for _ in range(11):
        window.end_step()
        window.begin_step()
    assert " ".join(seen) == expected


@dataclass
class Module:
    num_parameters: int


@pytest.mark.parametrize(("num_parameters", "warns"), [(20_000, True), (5_000, False)])
def test_a_model_of_which_the_profiler_keeps_gigabytes_is_announced(
    num_parameters: int, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    notes = Notes()
    notes.modules = (Module(num_parameters),)
    window = Window(Settings("run", warmup=1, steps=5), Job(seen), notes)  # type: ignore[arg-type]
    monkeypatch.setattr(window.profiler, "prepare", lambda: None)
    window._start_profiler()
    warning = "profiling 6 steps with 20000 parameter tensors may take 4.8 GB of memory on each rank"
    assert [text.partition(". ")[0] for text in seen] == [warning] * warns


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
                captured, waited = object(), len(device.synchronized)
                torch.cuda.CUDAGraph.capture_begin(captured)
                training.step()
                profiled = torch.autograd._profiler_enabled()
                assert (len(device.synchronized), profiled) == (waited, step == 17)
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


@pytest.fixture
def emulated_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    with emulate():
        yield
    dist.destroy_process_group()


def sampled_iteration(ddp: Any) -> int | None:
    return ddp._get_ddp_logging_data().get("iteration")  # type: ignore[no-any-return]


def train(ddp: Any, optimizer: Any) -> bool:
    """Take a step; return whether torch took the times of an iteration in it."""
    before = sampled_iteration(ddp)
    optimizer.zero_grad()
    ddp(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    return sampled_iteration(ddp) != before


@pytest.mark.usefixtures("emulated_group")
@pytest.mark.parametrize(
    ("options", "num_steps"),
    [
        pytest.param({}, 35, id="defaults"),
        pytest.param({"skip_first": 2, "cost_steps": 110, "steps": 5}, 135, id="the-hundredth-among-them"),
        pytest.param({"timed_steps": 100, "profiler": False}, 130, id="timed-steps"),
    ],
)
def test_no_step_that_counts_is_one_in_which_torch_waits(options: dict[str, Any], num_steps: int) -> None:
    with ddpprof.profile("run", **options):
        ddp = DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        waits = [step for step in range(num_steps) if train(ddp, optimizer)]
    counted = [json.loads(line)["number"] for line in Path("run/rank-0.steps.jsonl").read_text().splitlines()]
    assert len(counted) > 10
    assert waits[:10]
    assert not set(waits) & set(counted)


@pytest.mark.usefixtures("emulated_group")
def test_after_the_recorded_steps_torch_samples_as_ever() -> None:
    with ddpprof.profile("run", cost_steps=2, steps=2):
        ddp = DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        waits = [step for step in range(210) if train(ddp, optimizer)]
    assert [step for step in waits if step > 11] == [100, 200]


@pytest.mark.usefixtures("emulated_group")
def test_blocks_begin_when_the_new_reducers_first_iterations_are_over() -> None:
    """As `ddpprof overhead` has them: each block with DDP has a reducer of its own."""
    settings = Settings("run", cost_steps=0, steps=0, profiler=False, ddp_blocks=2, block_steps=4)
    schedule = Schedule(settings, on_accelerator=True)
    ddp = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    waits, modes = [], []
    for step in range(schedule.num_steps):
        is_without = schedule.is_without_ddp(step)
        switch_ddp(ddp, on=not is_without)
        waits.append(not is_without and train(ddp, optimizer))
        modes.append(schedule.mode(step))
    assert sum(waits) >= 20
    assert modes.count(StepMode.OFF) == modes.count(StepMode.WITHOUT_DDP) == 8
    assert not [step for step, waited in enumerate(waits) if waited and modes[step] is not StepMode.SKIP]
