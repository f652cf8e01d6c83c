"""How a session begins its pulse, and says how it ended, also if that was within a capture."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulse_writers import identity

from ddpprof.model import StepMode
from ddpprof.record.job import EndPlace, LastStep
from ddpprof.record.session import Session
from ddpprof.record.settings import Settings

STOPPED = "stopped recording: no space left."


class Steps:
    """Stands for a window, and keeps how it was told to have ended, and with how many steps."""

    mode = StepMode.DONE

    def __init__(self, step: int) -> None:
        self.step = step
        self.said: list[tuple[str | None, int]] = []
        self.end_place = EndPlace()

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
    assert str(main.end_place.line).endswith("in _fails")


def test_recording_stops_within_a_capture(within_a_capture: Session, main: Steps, capture: Steps) -> None:
    within_a_capture.give_up(OSError("no space left"))
    assert (main.said, capture.said) == ([(STOPPED, 13)], [(STOPPED, 13)])
    within_a_capture.close(None)
    assert len(main.said) == 1, "it has said already how it ended"


def test_modules_that_cannot_be_described_do_not_hide_why_recording_stopped(tmp_path: Path) -> None:
    session = Session(Settings(str(tmp_path / "run")))
    steps = Steps(10)

    def write_facts(ended: str | None) -> None:
        session.notes.facts()
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
    job.files, job.identity = SimpleNamespace(last_step=None), lambda *_: mine
    session._begin_pulse()
    assert "does not note what ranks do after the recorded steps: No such file or directory" in capsys.readouterr().err
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
    assert "does not note what ranks do after the recorded steps: Stale file handle" in capsys.readouterr().err
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
