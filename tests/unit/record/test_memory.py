"""What the recorder reads of memory: the process's from the system, the devices' from torch, made up here."""

from typing import Any

import pytest
import torch

from ddpprof.model import DeviceMemory
from ddpprof.record.memory import MemoryNotes, peak_resident_bytes, resident_bytes


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
