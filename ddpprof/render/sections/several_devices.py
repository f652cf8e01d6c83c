"""One process with several accelerators: how much each works, and what DataParallel spends on them."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.model import DataParallelModule
from ddpprof.render.sections.layout import MAX_RANKS, Column, Line, Section, Table, clean, count, cut_off, ms
from ddpprof.report import Report


def data_parallel_lines(report: Report) -> Iterable[Section]:
    for module in report.data_parallel.modules if report.data_parallel is not None else ():
        yield Line(_module(module))


def data_parallel_table(report: Report) -> Iterable[Section]:
    found = report.data_parallel
    if found is None:
        return
    step = found.step
    if step is None or not any((step.replicate_ns, step.scatter_ns, step.gather_ns, step.reduce_ns)):
        return
    values = (step.replicate_ns, step.scatter_ns, step.gather_ns, step.reduce_ns, step.exposed_ns)
    yield Table(
        "Data movement of DataParallel between devices, ms per step (medians)",
        tuple(map(Column, ("forwards", "replicate", "scatter", "gather", "reduce", "exposed"))),
        ((str(step.num_forwards), *map(ms, values)),),
        "replicate: parameters to every device; scatter: the batch, and gradients of the output; gather: the output to "
        "one device; reduce: gradients; exposed: while no device computes",
    )


def _module(module: DataParallelModule) -> str:
    devices = count(len(module.device_ids), "device") if module.device_ids else "no accelerator"
    return (
        f"DataParallel of {clean(module.name, most=80)} on {devices}: {count(module.num_parameters, 'parameter')}, "
        f"{module.parameter_bytes / 1e6:.2f} MB"
    )


def device_table(report: Report) -> Iterable[Section]:
    rows = [
        (str(rank.rank), str(load.device), *map(ms, (load.compute_ns, load.comm_ns, load.copy_ns, load.busy_ns)))
        for rank in report.ranks
        for load in rank.devices
    ]
    if rows:
        yield Table(
            "Devices of one process, ms per step (medians)",
            tuple(map(Column, ("rank", "device", "compute", "comm", "copies", "busy"))),
            tuple(rows[:MAX_RANKS]),
            cut_off(len(rows), what="devices"),
        )
