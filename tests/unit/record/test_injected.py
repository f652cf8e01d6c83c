"""The session of a process from its first DDP module to the end of the process."""

from __future__ import annotations

import atexit
import multiprocessing.util
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ddpprof.record import injected, session
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
    monkeypatch.setattr(session, "Session", lambda _settings: ends)
    monkeypatch.setattr(atexit, "register", at_the_end.append)
    monkeypatch.setattr(multiprocessing.util, "Finalize", lambda _owner, close, **_: at_the_end.append(close))
    monkeypatch.setattr(threading, "_register_atexit", at_the_end.append)
    injected._begin(Settings("run"))
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
    monkeypatch.setattr(session, "Session", lambda _settings: ends)
    monkeypatch.setattr(atexit, "register", lambda _close: None)
    monkeypatch.setattr(multiprocessing.util, "Finalize", lambda *_, **__: None)
    monkeypatch.setattr(threading, "_register_atexit", before_threads.append)
    injected._begin(Settings("run"))
    for function in before_threads:
        function()
    assert ends.has_closed is in_main_thread


def test_a_python_that_runs_nothing_before_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(threading, "_register_atexit")
    injected._before_threads_end(lambda: None)
