"""A trial's only rank, and a framework that starts ranks of its own."""

import os
from types import ModuleType

import pytest

from ddpprof.record.one_rank import install, launcher_variables


@pytest.fixture
def lightning() -> ModuleType:
    class LightningEnvironment:
        def __init__(self) -> None:
            self.creates_processes_externally = "LOCAL_RANK" in os.environ

    module = ModuleType("lightning")
    module.LightningEnvironment = LightningEnvironment
    return module


def test_lightning_does_not_see_a_trials_variables(lightning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in launcher_variables().items():
        monkeypatch.setenv(name, value)
    install(lightning)
    assert os.environ["LOCAL_RANK"] == "0", "a script that does not use Lightning's launcher needs it"
    assert not lightning.LightningEnvironment().creates_processes_externally
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()
    monkeypatch.setenv("LOCAL_RANK", "1")  # as Lightning starts its second rank, or a script says it itself
    assert lightning.LightningEnvironment().creates_processes_externally


def test_variables_of_a_launcher_stay(lightning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    install(lightning)
    assert lightning.LightningEnvironment().creates_processes_externally
