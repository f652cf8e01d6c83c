"""On accelerators torch takes times of its own in some iterations, for which it waits: these are not timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerator import emulate
from torch.nn.parallel import DistributedDataParallel

import ddpprof
from ddpprof.model import StepMode
from ddpprof.record.ddp_construction import switch_ddp
from ddpprof.record.settings import Settings
from ddpprof.record.steps import Schedule


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
