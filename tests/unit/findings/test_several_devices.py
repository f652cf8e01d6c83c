"""Rules about one process with several accelerators."""

from dataclasses import replace
from typing import Any

import pytest
from observations import MOVED, MS, observed, only

from ddpprof.findings import find
from ddpprof.measures.kernels.devices import DeviceLoad


def loads(*compute_ns: int) -> tuple[DeviceLoad, ...]:
    return tuple(DeviceLoad(device, ns, 0, 0, ns) for device, ns in enumerate(compute_ns))


@pytest.mark.parametrize(
    ("known", "gain_ns", "says"),
    [
        pytest.param(
            {"data_parallel": MOVED, "device_loads": loads(50 * MS, 42 * MS)}, 11 * MS,
            "copies parameters to them (3.00 ms), batches (2.00 ms), outputs (2.00 ms) and gradients (3.00 ms) back; "
            "7.00 ms of that is exposed; device 0 computes 4.00 ms more than the average device",
            id="traced",
        ),
        pytest.param({"data_parallel_devices": (4,)}, None, "drives 4 devices from one process", id="only-recorded"),
    ],
)  # fmt: skip
def test_data_parallel(known: dict[str, Any], gain_ns: int | None, says: str) -> None:
    finding = only(observed(**known))
    assert (finding.rule, finding.gain_ns) == ("data-parallel", gain_ns)
    assert says in finding.title + finding.evidence
    assert "torchrun" in finding.advice


@pytest.mark.parametrize(("devices", "says"), [((), None), ((0,), "no accelerator"), ((1,), "a single device")])
def test_data_parallel_on_one_device(devices: tuple[int, ...], says: str | None) -> None:
    findings = find(observed(data_parallel_devices=devices))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("data-parallel-on-one-device", None)] if says else [])
    assert all(says in f.title for f in findings if says)


@pytest.mark.parametrize(("again", "gather_ns", "fires"), [(1, 2 * MS, True), (0, 2 * MS, False), (1, -2 * MS, False)])
def test_outputs_scattered_again(again: int, gather_ns: int, fires: bool) -> None:
    moved = replace(MOVED, num_forwards=2, num_scattered_again=again, gather_ns=gather_ns)
    findings = [f for f in find(observed(data_parallel=moved)) if f.rule == "outputs-scattered-again"]
    assert [f.gain_ns for f in findings] == ([4 * MS] if fires else [])


@pytest.mark.parametrize(
    ("compute", "gain_ns"),
    [
        pytest.param((50 * MS, 30 * MS), 10 * MS, id="a-tenth-of-the-step"),
        pytest.param((50 * MS, 30 * MS + 2), None, id="less"),
        pytest.param((50 * MS,), None, id="one-device"),
        pytest.param((), None, id="not-measured"),
    ],
)
def test_device_imbalance(compute: tuple[int, ...], gain_ns: int | None) -> None:
    findings = find(observed(device_loads=loads(*compute)))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("device-imbalance", gain_ns)] if gain_ns else [])
    assert all("from device 0 to device 1" in f.advice for f in findings)
