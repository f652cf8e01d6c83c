"""How a recording begins and ends, also within a capture, and when the script never calls DDP."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pulse_writers import identity
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddpprof.model import StepMode
from ddpprof.record import ddp_construction
from ddpprof.record.ddp_construction import noting_parameters
from ddpprof.record.job import LastStep
from ddpprof.record.session import Session
from ddpprof.record.settings import Settings

STOPPED = "stopped recording: no space left."


class Steps:
    """Stands for a window, and keeps how it was told to have ended, and with how many steps."""

    mode = StepMode.DONE

    def __init__(self, step: int) -> None:
        self.step = step
        self.said: list[tuple[str | None, int]] = []
        self.end_place: dict[str, str | None] = {}

    def write_facts(self, ended: str | None) -> None:
        self.said.append((ended, self.step))

    close = write_facts

    def give_up(self) -> None:
        pass


@pytest.fixture
def main() -> Steps:
    return Steps(10)


@pytest.fixture
def capture() -> Steps:
    return Steps(13)


@pytest.fixture
def within_a_capture(tmp_path: Path, main: Any, capture: Any) -> Session:
    session = Session(Settings(str(tmp_path / "run")))
    session._main_window, session.window = main, capture
    return session


def test_a_training_ends_within_a_capture(within_a_capture: Session, main: Steps, capture: Steps) -> None:
    within_a_capture.close(None)
    assert (main.said, capture.said) == ([("finished", 13)], [("finished", 13)])


def _fails() -> None:
    raise ValueError("bad batch")


def test_a_training_fails_within_a_capture(within_a_capture: Session, main: Steps, capture: Steps) -> None:
    with pytest.raises(ValueError, match="bad batch") as failed:
        _fails()
    within_a_capture.close(failed.value)
    assert (main.said, capture.said) == ([("failed: ValueError: bad batch", 13)],) * 2
    assert main.end_place == capture.end_place
    assert str(main.end_place["ended_place"]).endswith("in _fails")


def test_recording_stops_within_a_capture(within_a_capture: Session, main: Steps, capture: Steps) -> None:
    within_a_capture.give_up(OSError("no space left"))
    assert (main.said, capture.said) == ([(STOPPED, 13)], [(STOPPED, 13)])
    within_a_capture.close(None)
    assert len(main.said) == 1, "it has said already how it ended"


def test_modules_that_cannot_be_described_do_not_hide_why_recording_stopped(tmp_path: Path) -> None:
    session = Session(Settings(str(tmp_path / "run")))
    steps = Steps(10)

    def write_facts(ended: str | None) -> None:
        session.notes.facts(0)
        Steps.write_facts(steps, ended)

    def describe() -> None:
        raise RuntimeError("no such bucket")

    made: Any = session
    made.window = SimpleNamespace(mode=StepMode.DONE, give_up=steps.give_up, write_facts=write_facts)
    made.notes.modules = [SimpleNamespace(describe=describe)]
    session.give_up(OSError("no space left"))
    assert steps.said == [(STOPPED, 10)]


def test_no_memory_is_left_where_the_run_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(Settings(str(tmp_path / "run")))
    mine = identity(tmp_path / "gone")
    job: Any = session.job
    job.files, job.identity = SimpleNamespace(directory=tmp_path, last_step=None), lambda *_: mine
    session._begin_pulse()
    assert "cannot record what ranks do after the recorded steps: No such file or directory" in capsys.readouterr().err
    assert session._pulse is None
    assert not Path(mine.shared).exists()


def test_no_pulse_goes_on_where_ranks_cannot_be_asked_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    session = Session(Settings(str(tmp_path)))
    mine = identity(tmp_path)
    job: Any = session.job
    job.files = SimpleNamespace(directory=tmp_path, last_step=LastStep(tmp_path / "last"))
    job.identity, job._agreement = lambda *_: mine, SimpleNamespace(store=None, group=(0,))
    monkeypatch.setattr("ddpprof.record.captures.Neighbours", fails)
    session._begin_pulse()
    assert "cannot record what ranks do after the recorded steps: Stale file handle" in capsys.readouterr().err
    assert session._pulse is None
    assert not Path(mine.shared).exists()
    assert "ddpprof-pulse" not in [thread.name for thread in threading.enumerate()]


def test_a_rank_that_failed_exits_though_the_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, answers = Session(Settings(str(tmp_path / "run"))), threading.Event()
    monkeypatch.setattr("ddpprof.record.session._OPEN_S", 0.01)
    monkeypatch.setattr(session, "_attach_and_open", answers.wait)
    session._open_after_failure()  # which returns
    answers.set()


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
