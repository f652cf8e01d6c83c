"""The recorded steps: when a trial waits for the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ddpprof.model import RecordedStep, StepMode
from ddpprof.record.device import TrainingDevice
from ddpprof.record.settings import Settings
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

    def facts(self) -> dict[str, Any]:
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
    warning = "6 profiled steps of 20000 parameter tensors may take 4.8 GB of memory in each rank"
    assert [text.partition(":")[0] for text in seen] == [warning] * warns
