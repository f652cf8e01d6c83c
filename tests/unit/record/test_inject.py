"""What is injected into each Python process of a job."""

from __future__ import annotations

import atexit
import importlib.util
import multiprocessing.util
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import ddpprof
from ddpprof.load.record import load_exits
from ddpprof.record import api, patches, session, torchrun
from ddpprof.record.settings import Settings


class Interrupted:
    """A session during whose end another Ctrl-C arrives."""

    def __init__(self, _settings: Settings) -> None:
        self.has_closed = False
        self.trains_in_main_thread = True

    def begin(self) -> None:
        pass

    def close(self, *_end: object) -> None:
        self.has_closed = True
        raise KeyboardInterrupt


def test_a_second_ctrl_c_at_the_end_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_end: list[Callable[[], Any]] = []
    ends = Interrupted(Settings("run"))
    monkeypatch.setattr(session, "Session", lambda *_: ends)
    monkeypatch.setattr(patches, "install", lambda _distributed: None)
    monkeypatch.setattr(atexit, "register", at_the_end.append)
    monkeypatch.setattr(multiprocessing.util, "Finalize", lambda _owner, close, **_: at_the_end.append(close))
    monkeypatch.setattr(threading, "_register_atexit", at_the_end.append)
    api._record_until_exit(Settings("run"), ModuleType("distributed"))
    assert len(at_the_end) == 3
    for close in at_the_end:
        close()
    assert ends.has_closed


@pytest.mark.parametrize("in_main_thread", [True, False])
def test_the_recording_ends_before_python_waits_for_threads(
    in_main_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that trains goes on when the main thread is over, and `atexit` comes after it."""
    before_threads: list[Callable[[], Any]] = []
    ends = Interrupted(Settings("run"))
    ends.trains_in_main_thread = in_main_thread
    monkeypatch.setattr(session, "Session", lambda *_: ends)
    monkeypatch.setattr(patches, "install", lambda _distributed: None)
    monkeypatch.setattr(atexit, "register", lambda _close: None)
    monkeypatch.setattr(multiprocessing.util, "Finalize", lambda *_, **__: None)
    monkeypatch.setattr(threading, "_register_atexit", before_threads.append)
    api._record_until_exit(Settings("run"), ModuleType("distributed"))
    for function in before_threads:
        function()
    assert ends.has_closed is in_main_thread


def test_a_python_that_runs_nothing_before_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(threading, "_register_atexit")
    api._before_threads_end(lambda: None)


@pytest.fixture
def notes_ends() -> ModuleType:
    path = Path(ddpprof.__file__).parent / "record" / "inject" / "_ddpprof_ends.py"
    spec = importlib.util.spec_from_file_location("notes_ends", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Popen:
    """Stands for that of ``multiprocessing``: a child whose exit code becomes known at its second look."""

    def __init__(self, exit_code: int) -> None:
        self.pid, self.returncode = 7, None
        self._codes: list[Any] = [None, exit_code, exit_code]

    def poll(self) -> int | None:
        self.returncode = self._codes.pop(0)
        return self.returncode


@pytest.mark.parametrize(("exit_code", "noted"), [(-9, [(7, -9)]), (0, [])])
def test_the_end_of_a_child_that_fails_is_noted_once(
    exit_code: int, noted: list[tuple[int, int]], notes_ends: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(torchrun, "note_child", lambda *child: found.append(child))
    popen = type("Popen", (Popen,), {})
    notes_ends.install_multiprocessing(SimpleNamespace(Popen=popen))
    child = popen(exit_code)
    assert [child.poll() for _ in range(3)] == [None, exit_code, exit_code]
    assert found == noted


def test_of_a_program_that_fails_again_and_again_only_the_first_ends_are_noted(
    notes_ends: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(torchrun, "note_child", lambda pid, _code: found.append(pid))
    for pid in range(300):
        notes_ends._note(pid, 1)
    assert found == list(range(256))


def test_a_module_without_that_method_is_left_alone(notes_ends: ModuleType) -> None:
    notes_ends.install_subprocess(SimpleNamespace(Popen=object))


@pytest.mark.parametrize(("is_torchrun", "num_noted"), [(False, 1), (True, 0)])
def test_torchrun_notes_its_ranks_by_itself(
    is_torchrun: bool, num_noted: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr(torchrun, "settings_from_environment", lambda: Settings(str(tmp_path)))
    monkeypatch.setenv(torchrun.AGENT, "1 here") if is_torchrun else monkeypatch.delenv(torchrun.AGENT, raising=False)
    torchrun.note_child(7, -9)
    assert [(one.pid, one.exit_code) for one in load_exits(tmp_path)] == [(7, -9)] * num_noted
