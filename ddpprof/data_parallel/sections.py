"""Data that ``nn.DataParallel`` moves between devices, and gradients that the script's own hooks reduce."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.data_parallel.own_reduction import OwnReduction
from ddpprof.data_parallel.transfers import DataParallelReport
from ddpprof.layout import Column, Line, Section, Table, clean, count, megabytes, ms
from ddpprof.model import DataParallelModule


def data_parallel_lines(found: DataParallelReport) -> Iterable[Section]:
    for module in found.modules:
        yield Line(_module(module))


def data_parallel_table(found: DataParallelReport) -> Iterable[Section]:
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
    tensors = count(module.num_parameters, "parameter tensor")
    size = f"{module.parameter_bytes / 1e6:.2f} MB"
    return f"DataParallel of {clean(module.name, most=80)} on {devices}: {tensors}, {size}"


def own_reduction_line(own: OwnReduction) -> Iterable[Section]:
    size = "" if own.num_bytes is None else f" of {megabytes(own.num_bytes)} MB in all"
    yield Line(
        "Gradients are all-reduced without torch's DDP (Apex-like), in hooks of the backward pass: "
        f"{count(own.num_all_reduces, 'all-reduce')} per step{size}, {ms(own.comm_ns)} ms, {ms(own.exposed_ns)} ms of "
        "it exposed."
    )
