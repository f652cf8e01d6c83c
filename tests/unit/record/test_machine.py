"""What the machine gives to this process, and waiting for what may never come."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from accelerator import block_for_ever

from ddpprof.linux_files import own_groups
from ddpprof.model import UNKNOWN, DeviceMemory, MemoryPeak
from ddpprof.record import machine, profiler
from ddpprof.record.machine import (
    MemoryNotes,
    PeakNotes,
    Standby,
    TrainingDevice,
    devices_of,
    peak_resident_bytes,
    resident_bytes,
    signals_end_a_hang,
)
from ddpprof.record.profiler import TraceFile


def test_the_process_grows_by_what_it_allocates() -> None:
    before = resident_bytes()
    block = bytearray(64 << 20)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])  # every page is touched
    after, peak = resident_bytes(), peak_resident_bytes()
    assert before is not None
    assert after is not None
    assert peak is not None
    assert 60 << 20 < after - before < 80 << 20
    assert peak > 64 << 20
    sample = MemoryNotes().sample()
    assert sample.rss_bytes is not None
    assert sample.peak_rss_bytes is not None
    assert sample.peak_rss_bytes >= sample.rss_bytes > 64 << 20
    assert sample.devices == ()
    del block


def test_without_cuda_nothing_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("asked"))
    assert MemoryNotes().devices() == ()


class Devices:
    """Three accelerators; on the first is a context, on the third nothing."""

    reserved: tuple[int, ...] = (300, 5000, 0)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
        monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", self.stats)
        monkeypatch.setattr(torch.cuda, "get_device_properties", self.properties)
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: device < 2, raising=False)

    def stats(self, device: int) -> dict[str, Any]:
        self.asked.append(device)
        reserved = self.reserved[device]
        return {
            "allocated_bytes": {"all": {"current": reserved // 2, "peak": reserved - 1}},
            "reserved_bytes": {"all": {"current": reserved, "peak": reserved}},
        }

    def properties(self, device: int) -> Any:
        return type("Properties", (), {"uuid": f"gpu-{device}", "total_memory": 10**6})()


def test_its_own_devices_are_sampled_and_all_that_it_holds_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, notes = Devices(monkeypatch), MemoryNotes()
    notes.owns([torch.device("cuda", 1), torch.device("cpu")])
    assert notes.sample().devices == (DeviceMemory(1, 2500, 4999, 5000),)
    assert devices.asked == [1]
    first, second = notes.devices()
    assert first == DeviceMemory(0, 150, 299, 300, is_own=False, uuid="gpu-0", total_bytes=10**6)
    assert (second.index, second.is_own, second.reserved_bytes) == (1, True, 5000)
    assert 2 not in devices.asked, "asking might make a context there"


def test_peaks_belong_to_the_part_of_the_step_in_which_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, memory = Devices(monkeypatch), MemoryNotes()
    memory.owns([torch.device("cuda", 1)])
    monkeypatch.setattr("ddpprof.record.machine.peak_resident_bytes", lambda: 1000)
    notes, ddp, optimizer = PeakNotes(memory), cast("Any", None), cast("Any", None)
    events = (
        (notes.forward_begins, ddp, 5001),
        (notes.backward_begins, None, 7001),
        (notes.backward_ends, None, 9001),
        (notes.optimizer_begins, optimizer, 9001),
        (notes.optimizer_ends, optimizer, 9051),  # not 1 % more
    )
    for event, what, reserved in events:
        devices.reserved = (300, reserved, 0)
        event(*(() if event == notes.backward_ends else (what,)))
    assert notes.facts() == {"peaks": (MemoryPeak(None, "other", 1000), MemoryPeak(1, "backward", 9000))}


def test_without_the_question_for_contexts_reserved_memory_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    Devices(monkeypatch)
    monkeypatch.delattr(torch._C, "_cuda_hasPrimaryContext")
    assert [device.index for device in MemoryNotes().devices()] == [0, 1]


def test_a_device_in_trouble_costs_only_these_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    Devices(monkeypatch)

    def fail(_device: int) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", fail)
    notes = MemoryNotes()
    notes.owns([torch.device("cuda", 1)])
    assert (notes.devices(), notes.sample().devices) == ((), ())


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    machine._throttling.cache_clear()
    yield
    machine._throttling.cache_clear()


@pytest.mark.parametrize(
    ("group", "folder", "content", "expected_ns"),
    [
        pytest.param("0::/job", "job", "usage_usec 9\nthrottled_usec 7\n", 7000, id="version-2"),
        pytest.param("4:cpu,cpuacct:/job", "cpu/job", "nr_throttled 1\nthrottled_time 7\n", 7, id="version-1"),
        pytest.param("0::/", ".", "usage_usec 9\n", UNKNOWN, id="no-limit"),
        pytest.param("5:memory:/job", "memory/job", "throttled_time 7\n", UNKNOWN, id="another-controller"),
    ],
)
def test_throttling(
    group: str, folder: str, content: str, expected_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "own_groups", partial(own_groups, root=tmp_path))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    (tmp_path / "sys/fs/cgroup" / folder).mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup" / folder / "cpu.stat").write_text(content)
    assert machine.Throttling().total_ns() == expected_ns


def test_a_process_that_is_put_into_another_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others suffered in that group before is not its own."""
    monkeypatch.setattr(machine, "own_groups", partial(own_groups, root=tmp_path))
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc/self")
    (tmp_path / "proc/self").mkdir(parents=True)
    throttling = machine.Throttling()
    totals = []
    for group, throttled in (("a", 5), ("a", 6), ("b", 900), ("b", 904)):
        (tmp_path / "proc/self/cgroup").write_text(f"4:cpu:/{group}\n")
        (tmp_path / "sys/fs/cgroup/cpu" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup/cpu" / group / "cpu.stat").write_text(f"throttled_time {throttled}\n")
        totals.append(throttling.total_ns())
    assert totals == [5, 6, 6, 10]


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> Standby:
    """Threads of a process that trained until now, and whose interpreter now exits."""
    standby = Standby()
    standby.prepare()
    for module in (machine, profiler):
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
    monkeypatch.setattr(machine, "_end_with", lambda number: (numbers.append(number), ended.set()))
    monkeypatch.setattr(machine, "_GRACE_OF_SCRIPTS_S", 0.0)
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
    with pytest.raises(RuntimeError, match="no helper thread is idle"):
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
