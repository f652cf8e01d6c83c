"""Which device is waited for, and for how long."""

import time
from typing import Any

import pytest
import torch
from accelerator import block_for_ever

from ddpprof.record.device import TrainingDevice, devices_of


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
