"""The session of a process from its first DDP module to the end of the process."""

from __future__ import annotations

import atexit
import multiprocessing.util
from collections.abc import Callable
from typing import Any

import pytest

from ddpprof.record import injected, session
from ddpprof.record.settings import Settings


class Interrupted:
    """A session during whose end another Ctrl-C arrives."""

    def __init__(self, _settings: Settings) -> None:
        self.has_closed = False

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
    injected._begin(Settings("run"))
    assert len(at_the_end) == 2
    for close in at_the_end:
        close()
    assert ends.has_closed
