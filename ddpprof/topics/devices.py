"""Measure how long each accelerator of a process computes, communicates and copies, per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from statistics import mean, median

import numpy as np

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import Spans, merge, union_of
from ddpprof.layout import in_ms
from ddpprof.model import UNKNOWN, Collectives, Int32Column, Trace, Work


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """Time that one device is in use, in ns: in one step, or as the median over steps."""

    device: int
    compute_ns: int
    comm_ns: int
    copy_ns: int
    busy_ns: int
    """time during which at least one of the three runs"""


def measure_devices(trace: Trace, step: int) -> tuple[DeviceLoad, ...]:
    """Return the load of each device; empty unless the trace has several devices."""
    devices = _devices(trace)
    return tuple(_load(trace, step, device) for device in devices) if len(devices) > 1 else ()


def _devices(trace: Trace) -> list[int]:
    columns = (trace.compute.device, trace.collectives.device, trace.copies.device)
    return sorted({device for column in columns for device in _distinct(column)} - {UNKNOWN})


def _distinct(column: Int32Column) -> list[int]:
    """Return the distinct values, without sorting if there is only one, which is the usual case."""
    found: list[int] = (column[:1] if (column == column[:1]).all() else np.unique(column)).tolist()
    return found


def _load(trace: Trace, step: int, device: int) -> DeviceLoad:
    compute, comm, copies = (
        _spans(table, step, device) for table in (trace.compute, trace.collectives, trace.copies)
    )  # fmt: skip
    busy = merge(merge(compute, comm), copies)
    return DeviceLoad(device, compute.total_ns, comm.total_ns, copies.total_ns, busy.total_ns)


def _spans(table: Work | Collectives, step: int, device: int) -> Spans:
    rows = np.flatnonzero((table.step == step) & (table.device == device))
    return union_of(table, rows)


def median_load(steps: Sequence[Sequence[DeviceLoad]]) -> tuple[DeviceLoad, ...]:
    """Return the medians over steps for each device."""
    by_device: dict[int, list[DeviceLoad]] = {}
    for load in (load for step in steps for load in step):
        by_device.setdefault(load.device, []).append(load)
    columns = {device: zip(*map(astuple, loads), strict=True) for device, loads in sorted(by_device.items())}
    return tuple(DeviceLoad(*(round(median(column)) for column in of_device)) for of_device in columns.values())


def imbalance_ns(loads: Sequence[DeviceLoad]) -> int:
    """Return how much longer the busiest device computes than the average one, in ns."""
    compute = [load.compute_ns for load in loads]
    return round(max(compute) - mean(compute)) if compute else 0


_MUCH = 0.1
"""minimum imbalance, as a share of the step, to report it"""


def device_imbalance(loads: Sequence[DeviceLoad], view: View) -> Iterator[Finding]:
    """Report a device that computes longer than the process's other devices."""
    surplus = imbalance_ns(loads)
    if not loads or not view.step_ns or surplus < _MUCH * view.step_ns:
        return
    by_load = sorted(loads, key=lambda load: load.compute_ns, reverse=True)
    yield Finding(
        "device-imbalance",
        f"Device {by_load[0].device} spends {in_ms(surplus)} more per step on computation than the average device of "
        f"the process",
        "computation per step: " + ", ".join(f"device {load.device} {in_ms(load.compute_ns)}" for load in by_load[:8]),
        f"Move layers, or parts of the batch, from device {by_load[0].device} to device {by_load[-1].device}.",
        surplus,
        subject={"device": by_load[0].device},
        numbers=only_known(surplus_ns=surplus, num_devices=len(loads)),
    )


DEVICES: Topic[None, tuple[DeviceLoad, ...]] = Topic("devices", rules=(device_imbalance,))
"""device loads of the rank whose devices differ most"""
