"""Rules about gradients that are averaged without torch's DDP."""

from dataclasses import replace
from typing import Any

import pytest
from observations import MOVED, MS, beside, observed

from ddpprof.model import DataParallelModule
from ddpprof.report.topics import find_all
from ddpprof.topics.devices import DataParallelReport, DataParallelStep, DeviceLoad
from ddpprof.topics.memory import DeviceUse, RankMemory


def using(step: DataParallelStep | None, *num_devices: int) -> DataParallelReport:
    """`num_devices`: of each recorded module."""
    return DataParallelReport(0, tuple(DataParallelModule("Net", tuple(range(n)), 2, 8) for n in num_devices), step)


def loads(*compute_ns: int) -> tuple[DeviceLoad, ...]:
    return tuple(DeviceLoad(device, ns, 0, 0, ns) for device, ns in enumerate(compute_ns))


@pytest.mark.parametrize(
    ("found", "known", "gain_ns", "says"),
    [
        pytest.param(
            using(MOVED), {"device_loads": loads(50 * MS, 42 * MS)}, 11 * MS,
            "copies parameters (3.00 ms) and batches (2.00 ms) to the devices, and outputs (2.00 ms) and gradients "
            "(3.00 ms) back; 7.00 ms of this time is exposed; device 0 spends 4.00 ms more on computation than the "
            "average device",
            id="traced",
        ),
        pytest.param(using(None, 4), {}, None, "drives 4 devices from one process", id="only-recorded"),
    ],
)  # fmt: skip
def test_data_parallel(found: DataParallelReport, known: dict[str, Any], gain_ns: int | None, says: str) -> None:
    (finding,) = beside("data_parallel", found, **known)
    assert (finding.rule, finding.gain_ns) == ("data-parallel", gain_ns)
    assert says in finding.title + finding.evidence
    assert "torchrun" in finding.advice


@pytest.mark.parametrize(("devices", "says"), [((), None), ((0,), "no accelerator"), ((1,), "a single device")])
def test_data_parallel_on_one_device(devices: tuple[int, ...], says: str | None) -> None:
    findings = beside("data_parallel", using(None, *devices))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("data-parallel-on-one-device", None)] if says else [])
    assert all(says in f.title for f in findings if says)


def test_why_one_device_works_more_and_holds_more() -> None:
    uses = tuple(DeviceUse(index, True, size, size, size, None) for index, size in enumerate((9 * 10**9, 10**9)))
    shown = {"data_parallel": using(MOVED, 2), "memory": (RankMemory(0, "node", None, None, uses),)}
    view = observed(device_loads=loads(50 * MS, 30 * MS))
    findings = find_all(replace(view, shown={**view.shown, **shown}))
    advice = {finding.rule: finding.advice for finding in findings}
    assert "Have the wrapped module return the loss" in advice["device-imbalance"]
    assert "DataParallel gathers outputs" in advice["memory-imbalance"]
