"""What the machine gives to this process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpprof.linux_files import own_groups
from ddpprof.model import UNKNOWN, DeviceMemory
from ddpprof.record import machine
from ddpprof.record.machine import MemoryNotes, peak_resident_bytes, resident_bytes


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

    reserved = (300, 5000, 0)

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
