"""Threads that exist before they are needed, and devices that do not come to rest."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerator import block_for_ever

from ddpprof.record import profiler, waiting
from ddpprof.record.profiler import TraceFile
from ddpprof.record.waiting import Standby, TrainingDevice, devices_of, signals_end_a_hang


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> Standby:
    """Threads of a process that trained until now, and whose interpreter now exits."""
    standby = Standby()
    standby.prepare()
    for module in (waiting, profiler):
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
    monkeypatch.setattr(waiting, "_end_with", lambda number: (numbers.append(number), ended.set()))
    monkeypatch.setattr(waiting, "_GRACE_OF_SCRIPTS_S", 0.0)
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


class Ddp:
    """What `devices_of` asks of a DDP module; parameters on accelerators cannot be made here."""

    device_type = "cuda"

    def __init__(self, *devices: str) -> None:
        self._devices = devices

    def parameters(self) -> list[Any]:
        return [type("Parameter", (), {"device": torch.device(device)}) for device in self._devices]


def on(*devices: str) -> TrainingDevice:
    device = TrainingDevice()
    device.found(map(torch.device, devices))
    return device


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        pytest.param(("cuda:1", "cuda:1"), "cuda:1", id="device-ids-without-set-device"),
        pytest.param(("cuda:2", "cuda:3"), "cuda:2 cuda:3", id="several-devices-in-a-module"),
        pytest.param(("cpu",), "cuda", id="emulated"),
    ],
)
def test_the_devices_that_hold_parameters_are_waited_for(
    held: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", asked.append)
    device = TrainingDevice()
    device.found(devices_of(Ddp(*held)))  # type: ignore[arg-type]
    assert device.comes_to_rest(5.0)
    assert " ".join(map(str, asked)) == expected


def test_on_the_cpu_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", None)
    assert on("cpu").comes_to_rest(0.0)
    assert on("cpu").type == "cpu"


def test_a_device_that_is_stuck_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: block_for_ever())
    began = time.monotonic()
    assert not on("cuda:0").comes_to_rest(0.2)
    assert time.monotonic() - began < 5


def test_nobody_waits_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: pytest.fail("this breaks the capture"))
    device = on("cuda:0")
    device.is_captured = True
    assert not device.comes_to_rest(5.0)


def test_an_error_of_the_device_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.accelerator, "synchronize", fail)
    assert not on("cuda:0").comes_to_rest(5.0)
