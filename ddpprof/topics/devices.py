r"""Measure how long each device of a process with several devices works per step, and ``nn.DataParallel``'s transfers.

    replicate   copies the parameters to every device, in each forward pass
    scatter     splits the batch among the devices; in the backward pass, the gradients of the output
    gather      copies the output to one device
    reduce      sums the gradients of all devices on the first device

The time of a phase is the union of all communication and copies that the phase launched, on all devices.

    exposed = |transfers of all phases \ compute on any device|
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from functools import reduce
from statistics import mean, median

import numpy as np

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.intervals import Spans, merge, subtract, union_of
from ddpprof.layout import Column, Line, Section, Table, clean, count, in_ms, megabytes, ms
from ddpprof.model import UNKNOWN, Collectives, DataParallelModule, Int32Column, Mark, Rank, Trace, Work
from ddpprof.topics.steps.overlap import spans_of


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """Time in which one device is in use, in ns; in one step, or the median over steps."""

    device: int
    compute_ns: int
    comm_ns: int
    copy_ns: int
    busy_ns: int
    """time in which the device computes, communicates or copies"""


def measure_devices(trace: Trace, step: int) -> tuple[DeviceLoad, ...]:
    """Return the load of each device; empty unless the trace has several devices."""
    devices = _devices(trace)
    return tuple(_load(trace, step, device) for device in devices) if len(devices) > 1 else ()


def _devices(trace: Trace) -> list[int]:
    columns = (trace.compute.device, trace.collectives.device, trace.copies.device)
    return sorted({device for column in columns for device in _distinct(column)} - {UNKNOWN})


def _distinct(column: Int32Column) -> list[int]:
    """Return the distinct values. In the usual case of a single value, nothing is sorted."""
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
    """Return how much more time, in ns, the busiest device spends on computation than the average device."""
    compute = [load.compute_ns for load in loads]
    return round(max(compute) - mean(compute)) if compute else 0


_MUCH = 0.1
"""imbalance is reported if one device computes longer than the average device by at least this share of the step"""


def device_imbalance(loads: Sequence[DeviceLoad], view: View) -> Iterator[Finding]:
    """Report a device that spends more time on computation than the other devices of its process."""
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
"""load of each device on the rank whose devices differ most"""


@dataclass(frozen=True, slots=True)
class DataParallelStep:
    """Work of ``nn.DataParallel`` in one step of one process, or the medians over steps."""

    num_forwards: int
    replicate_ns: int
    scatter_ns: int
    gather_ns: int
    reduce_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class DataParallelReport:
    """Work of ``nn.DataParallel`` in one process, in ns per step (medians over steps)."""

    rank: int
    modules: tuple[DataParallelModule, ...]
    """modules that ddpprof recorded; empty if ddpprof did not record the job"""
    step: DataParallelStep | None


def data_parallel_of_rank(rank: Rank, steps: Sequence[int], _modules: object = ()) -> DataParallelReport | None:
    """Measure the rank in the steps with these indices; return ``None`` if it has no ``DataParallel`` module."""
    modules = rank.record.data_parallel if rank.record is not None else ()
    trace = rank.trace
    measured = None if trace is None else median_data_parallel([measure_data_parallel(trace, step) for step in steps])
    return DataParallelReport(rank.rank, modules, measured) if modules or measured is not None else None


_PARTS = (Mark.REPLICATE, Mark.SCATTER, Mark.GATHER, Mark.REDUCE_GRADIENTS)


def measure_data_parallel(trace: Trace, step: int) -> DataParallelStep | None:
    """Return the measures of one step, or ``None`` if it has no ``DataParallel.forward``."""
    host = trace.host_spans
    forwards = np.flatnonzero((host.mark == Mark.DATA_PARALLEL) & (host.step == step))
    if not len(forwards):
        return None
    parts = [_launched_in(trace, step, mark) for mark in _PARTS]
    exposed = subtract(reduce(merge, parts), spans_of(trace.compute, step))
    replicate, scatter, gather, reduction = (part.total_ns for part in parts)
    return DataParallelStep(len(forwards), replicate, scatter, gather, reduction, exposed.total_ns)


def _launched_in(trace: Trace, step: int, mark: Mark) -> Spans:
    """Return the communication and copies that the host launched within spans of `mark`."""
    host = trace.host_spans
    rows = np.flatnonzero((host.mark == mark) & (host.step == step))
    inside = union_of(host, rows)
    spans = []
    for table in (trace.collectives, trace.copies):
        known = (table.step == step) & (table.launched_ns != UNKNOWN)
        chosen = np.flatnonzero(known & inside.contains(table.launched_ns))
        spans.append(union_of(table, chosen))
    return merge(*spans)


def median_data_parallel(steps: Sequence[DataParallelStep | None]) -> DataParallelStep | None:
    """Return the median of each column; ``None`` if no step has a ``DataParallel.forward``."""
    known = [step for step in steps if step is not None]
    if not known:
        return None
    return DataParallelStep(
        *(round(median(getattr(step, column.name) for step in known)) for column in fields(DataParallelStep))
    )


def data_parallel(found: DataParallelReport, view: View) -> Iterator[Finding]:
    """Report a script that uses ``nn.DataParallel`` instead of DDP."""
    step, loads = found.step, view[DEVICES] or ()
    of_modules = [len(module.device_ids) for module in found.modules]
    devices = len(loads) or max(of_modules, default=0)
    if devices < 2:
        if of_modules and view.step_ns:
            yield _on_one_device(max(of_modules))
        return
    evidence = f"one process drives {devices} devices, and its threads compete for Python's global interpreter lock"
    gain = None
    if step is not None:
        evidence += (
            f"; per step it copies parameters ({in_ms(step.replicate_ns)}) and batches ({in_ms(step.scatter_ns)}) to "
            f"the devices, and outputs ({in_ms(step.gather_ns)}) and gradients ({in_ms(step.reduce_ns)}) back; "
            f"{in_ms(step.exposed_ns)} of this time is exposed"
        )
        gain = step.exposed_ns + imbalance_ns(loads)
    if loads:
        busiest = max(loads, key=lambda load: load.compute_ns)
        evidence += (
            f"; device {busiest.device} spends {in_ms(imbalance_ns(loads))} more on computation than the average device"
        )
    yield Finding(
        "data-parallel",
        f"nn.DataParallel drives {devices} devices from one process",
        evidence,
        "Use DistributedDataParallel with one process per device: torchrun --nproc-per-node N, init_process_group, "
        "DistributedSampler. It copies the model once, and reduces gradients during the backward pass.",
        gain,
        numbers=only_known(num_devices=devices, exposed_ns=step.exposed_ns if step is not None else None),
    )


def _on_one_device(devices: int) -> Finding:
    where = "no accelerator" if devices == 0 else "a single device"
    return Finding(
        "data-parallel-on-one-device",
        f"nn.DataParallel has {where} to run on",
        "without several devices, DataParallel only calls the wrapped module",
        "Use the module itself, or DistributedDataParallel for several devices or processes.",
        None,
        numbers=only_known(num_devices=devices),
    )


def data_parallel_lines(found: DataParallelReport, _report: ReportView) -> Iterable[Section]:
    for module in found.modules:
        yield Line(_module(module))


def data_parallel_table(found: DataParallelReport, _report: ReportView) -> Iterable[Section]:
    step = found.step
    if step is None or not any((step.replicate_ns, step.scatter_ns, step.gather_ns, step.reduce_ns)):
        return
    values = (step.replicate_ns, step.scatter_ns, step.gather_ns, step.reduce_ns, step.exposed_ns)
    yield Table(
        "DataParallel data transfers between devices, ms per step (medians)",
        tuple(map(Column, ("forwards", "replicate", "scatter", "gather", "reduce", "exposed"))),
        ((str(step.num_forwards), *map(ms, values)),),
        "replicate: copies parameters to every device; scatter: splits the batch, and the gradients of the output, "
        "across devices; gather: collects the output on one device; reduce: sums gradients; exposed: part of this "
        "time in which no device computes",
    )


def _module(module: DataParallelModule) -> str:
    devices = count(len(module.device_ids), "device") if module.device_ids else "no accelerator"
    size = f"{count(module.num_parameters, 'parameter tensor')}, {megabytes(module.parameter_bytes)} MB"
    return f"DataParallel of {clean(module.name, most=80)} on {devices}: {size}"


DATA_PARALLEL: Topic[DataParallelReport, DataParallelReport] = Topic(
    name="data_parallel",
    sections={"job": data_parallel_lines, "step": data_parallel_table},
    rules=(data_parallel,),
    advice={
        "device-imbalance": "This device also computes the loss of the whole batch. Have the wrapped module return "
        "the loss, so that every device computes the loss of its own part of the batch.",
        "memory-imbalance": "DataParallel gathers outputs on one device and keeps the optimizer's state there: use "
        "DistributedDataParallel.",
    },
    of_rank=data_parallel_of_rank,
    # There is one rank, unless each host runs its own job.
    rank_type=DataParallelReport,
    of_ranks=lambda ranks: ranks[0],
)
