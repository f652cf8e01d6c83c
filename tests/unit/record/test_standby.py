"""Threads that exist before they are needed: as in Python 3.12 and newer, none can be started at the end."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpprof.record import device as devices
from ddpprof.record import hang_signals, trace_file
from ddpprof.record.device import TrainingDevice
from ddpprof.record.hang_signals import signals_end_a_hang
from ddpprof.record.standby import Standby
from ddpprof.record.trace_file import TraceFile


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> Standby:
    """Threads of a process that trained until now, and whose interpreter now exits."""
    standby = Standby()
    standby.prepare()
    for module in (devices, hang_signals, trace_file):
        monkeypatch.setattr(module, "STANDBY", standby)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return standby


class Recorded:
    """Stands for what the profiler recorded."""

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}")


def test_a_trace_is_written_while_the_interpreter_exits(at_exit: Standby, tmp_path: Path) -> None:
    trace = TraceFile(tmp_path, 0)
    trace.write(Recorded())  # type: ignore[arg-type]
    trace.finish(1.0, [])
    assert (tmp_path / "rank-0.trace.json.gz").exists()


def test_a_device_is_waited_for_while_the_interpreter_exits(at_exit: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: None)
    device = TrainingDevice()
    device.found([torch.device("cuda:0")])
    assert device.comes_to_rest(5.0)


def test_a_stuck_device_takes_one_thread_however_often_it_is_waited_for(
    at_exit: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves_on, calls = threading.Event(), []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: (calls.append(1), moves_on.wait(60)))
    device = TrainingDevice()
    device.found([torch.device("cuda:0")])
    assert [device.comes_to_rest(0.01) for _ in range(5)] == [False] * 5
    assert len(calls) == 1
    moves_on.set()
    assert device.comes_to_rest(60)
    assert len(calls) == 2  # what was launched since the first wait is waited for, too


def test_signals_are_watched_while_the_interpreter_exits(at_exit: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, numbers = threading.Event(), []
    monkeypatch.setattr(hang_signals, "_end_with", lambda number: (numbers.append(number), ended.set()))
    monkeypatch.setattr(hang_signals, "_GRACE_OF_SCRIPTS_S", 0.0)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with signals_end_a_hang():
            signal.raise_signal(signal.SIGTERM)
            assert ended.wait(60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert numbers == [signal.SIGTERM]


def test_work_is_refused_where_no_thread_is_idle_or_can_be_started(at_exit: Standby) -> None:
    moves_on = threading.Event()
    stuck = [at_exit.run(lambda: moves_on.wait(60) and None) for _ in range(3)]
    with pytest.raises(RuntimeError, match="no thread is idle"):
        at_exit.run(lambda: None)
    with signals_end_a_hang():  # goes on without a watch
        pass
    moves_on.set()
    wait(stuck, 60)
    assert at_exit.run(lambda: None).result(60) is None


def test_a_trace_for_which_no_thread_is_left_is_written_by_the_one_that_ends(at_exit: Standby, tmp_path: Path) -> None:
    moves_on = threading.Event()
    for _ in range(3):
        at_exit.run(lambda: moves_on.wait(60) and None)
    trace = TraceFile(tmp_path, 0)
    trace.write(Recorded())  # type: ignore[arg-type]
    trace.finish(1.0, [])
    moves_on.set()
    assert (tmp_path / "rank-0.trace.json.gz").exists()


def test_an_error_in_the_work_reaches_who_asked_for_it(at_exit: Standby) -> None:
    def fail() -> Any:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        at_exit.run(fail).result(60)
    assert at_exit.run(lambda: None).result(60) is None  # the thread goes on


def test_threads_that_are_busy_are_replaced_while_that_is_possible() -> None:
    moves_on, standby = threading.Event(), Standby()
    stuck = [standby.run(lambda: moves_on.wait(60) and None) for _ in range(7)]
    assert standby.run(lambda: None).result(60) is None
    moves_on.set()
    wait(stuck, 60)


def test_a_fork_does_not_wait_for_threads_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby()
    standby.prepare()
    monkeypatch.setattr(standby, "_process", -1)  # as if the threads were those of the parent
    monkeypatch.setattr(standby, "_work", None)
    assert standby.run(lambda: None).result(60) is None
