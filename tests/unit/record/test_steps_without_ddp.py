"""Steps of an optimizer of a DDP module before the first forward of DDP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddpprof.record import ddp_construction
from ddpprof.record.ddp_construction import noting_parameters
from ddpprof.record.session import Session
from ddpprof.record.settings import Settings


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a session decides."""
    decided: list[str] = []
    monkeypatch.setattr(Session, "attach", lambda _session, _ddp: decided.append("attached"))
    monkeypatch.setattr(
        "ddpprof.record.window.Window.without_common_steps", lambda _window: decided.append("without common steps")
    )
    return decided


@pytest.fixture
def ddp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DDP]:
    monkeypatch.setattr(DDP, "_ddp_init_helper", noting_parameters(DDP._ddp_init_helper))
    monkeypatch.setattr(ddp_construction, "_noted", type(ddp_construction._noted)())
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield DDP(nn.Linear(2, 1))
    dist.destroy_process_group()


def after_steps(session: Session, model: nn.Module, number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    session._recorded.backward_begins(None)
    for _ in range(number):
        session._recorded.optimizer_ends(optimizer)


@pytest.mark.parametrize(
    ("skip_first", "num_steps", "decides"),
    [
        pytest.param(3, 1, False, id="one-step-that-allocates-memory"),
        pytest.param(3, 3, False, id="as-many-as-are-skipped"),
        pytest.param(3, 4, True, id="a-training-without-ddp"),
        pytest.param(1, 3, False, id="few-though-fewer-are-skipped"),
        pytest.param(9, 9, False, id="more-are-skipped"),
    ],
)
def test_a_few_steps_do_not_tell_that_ddp_is_never_called(
    skip_first: int, num_steps: int, decides: bool, ddp: DDP, told: list[str], tmp_path: Path
) -> None:
    session = Session(Settings(str(tmp_path / "run"), skip_first=skip_first))
    after_steps(session, ddp.module, num_steps)
    assert told == (["attached", "without common steps"] if decides else [])


def test_an_optimizer_that_takes_the_place_of_one_of_another_model(ddp: DDP, told: list[str], tmp_path: Path) -> None:
    """Its identity may be that of one that the script has dropped."""
    session = Session(Settings(str(tmp_path / "run")))
    for _ in range(20):
        after_steps(session, nn.Linear(1, 1), 1)
    assert told == []
    after_steps(session, ddp.module, 20)
    assert told[:2] == ["attached", "without common steps"]
