"""DDP averages the parameters that it was constructed with, whatever a script freezes and unfreezes later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpprof.errors import DdpprofError
from ddpprof.model import StepMode
from ddpprof.record.ddp_variants import switch
from ddpprof.record.modules import RecordedModule
from ddpprof.record.notes import StepNotes
from ddpprof.record.reducer import noting_parameters, reducer_parameters, unfrozen_parameters

ALL = ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.fixture(autouse=True)
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    original = DistributedDataParallel._ddp_init_helper
    monkeypatch.setattr(DistributedDataParallel, "_ddp_init_helper", noting_parameters(original))


def train(ddp: DistributedDataParallel) -> None:
    """Take one step with all parameters that need gradients."""
    optimizer = torch.optim.SGD([one for one in ddp.parameters() if one.requires_grad], lr=0.1)
    ddp(torch.randn(2, 4)).sum().backward()
    optimizer.step()


def model(*, is_frozen: bool) -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers[0].requires_grad_(not is_frozen)
    return layers


@pytest.mark.usefixtures("noting")
def test_the_reducer_keeps_parameters_that_are_frozen_later() -> None:
    ddp = DistributedDataParallel(model(is_frozen=False), find_unused_parameters=True)
    ddp.module[0].requires_grad_(False)
    assert reducer_parameters(ddp).names == ALL
    module = RecordedModule(ddp, 0)
    module.begin_step(StepMode.LIGHT)
    ddp(torch.randn(2, 4)).sum().backward()
    module.begin_step(StepMode.DONE)
    described = module.describe()
    assert [one.name for one in described.parameters] == ALL
    assert sorted(index for bucket in described.buckets for index in bucket) == [0, 1, 2, 3]
    assert unfrozen_parameters(ddp) == ()


@pytest.mark.usefixtures("noting")
def test_the_reducer_does_not_know_parameters_that_are_unfrozen_later() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    assert unfrozen_parameters(ddp) == ()
    ddp.module[0].requires_grad_(True)
    assert unfrozen_parameters(ddp) == ()
    assert unfrozen_parameters(ddp) == (), "a gradient alone changes nothing"
    train(ddp)
    assert reducer_parameters(ddp).names == ALL[2:]
    assert unfrozen_parameters(ddp) == ("0.weight", "0.bias")


@pytest.mark.usefixtures("noting")
def test_parameters_that_ddp_is_told_to_ignore_are_not_missed() -> None:
    layers = model(is_frozen=True)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(layers, ["0.weight"])
    ddp = DistributedDataParallel(layers)
    ddp.module[0].requires_grad_(True)
    unfrozen_parameters(ddp)
    train(ddp)
    assert unfrozen_parameters(ddp) == ("0.bias",)


@pytest.mark.usefixtures("noting")
def test_what_another_ddp_module_averages_is_not_missed() -> None:
    before = DistributedDataParallel(model(is_frozen=True))
    before.module[0].requires_grad_(True)
    assert unfrozen_parameters(before) == ()
    again = DistributedDataParallel(before.module)
    train(again)
    assert unfrozen_parameters(before) == ()


@pytest.mark.usefixtures("noting")
def test_values_that_are_loaded_before_unfreezing_are_not_trained() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    ddp.module.load_state_dict(model(is_frozen=True).state_dict())
    ddp.module[0].requires_grad_(True)
    assert unfrozen_parameters(ddp) == ()
    assert unfrozen_parameters(ddp) == ()


@pytest.mark.usefixtures("noting")
def test_ddp_is_taken_away_and_put_back_though_parameters_were_frozen_since() -> None:
    ddp = DistributedDataParallel(model(is_frozen=False), find_unused_parameters=True)
    ddp.module[0].requires_grad_(False)
    switch(ddp, on=False)
    switch(ddp, on=True)
    assert reducer_parameters(ddp).names == ALL[2:], "the new reducer has those that are trained now"
    ddp(torch.randn(2, 4)).sum().backward()


@pytest.mark.usefixtures("noting")
def test_notes_keep_no_parameter_alive() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    parameter = weakref.ref(ddp.module[1].weight)
    del ddp
    gc.collect()
    assert parameter() is None


@pytest.mark.usefixtures("noting")
def test_notes_remember_what_was_trained_once() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    notes = StepNotes()
    notes.module(ddp)
    ddp.module[0].bias.requires_grad_(True)
    assert notes.unfrozen() == ()
    train(ddp)
    assert notes.unfrozen() == ("0.bias",)
    ddp.module[0].requires_grad_(False)
    assert notes.facts()["unfrozen"] == ("0.bias",)


def test_a_module_constructed_before_is_described_as_it_is_now() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    assert reducer_parameters(ddp).names == ALL[2:]
    assert unfrozen_parameters(ddp) == ()


def test_a_module_constructed_before_and_changed_since_cannot_be_described() -> None:
    ddp = DistributedDataParallel(model(is_frozen=False), find_unused_parameters=True)
    ddp.module[0].requires_grad_(False)
    with pytest.raises(DdpprofError, match="frozen or unfrozen parameters since it constructed DDP"):
        reducer_parameters(ddp)
