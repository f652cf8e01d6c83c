r"""How long does ``nn.DataParallel`` move data between the devices of its process? Per step, by part.

    replicate   parameters copied to every device, in each forward
    scatter     the batch divided among the devices; in the backward pass, the gradients of the output
    gather      the output brought to one device
    reduce      gradients of all devices added up on the first one

Each part is the length of the union, over all devices, of the communication and copies that it launched.

    exposed = |all of them \ compute on any device|
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import median

import numpy as np

from ddpprof.engine.finding import Finding, in_ms, only_known
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import Spans, merge, subtract, union_of
from ddpprof.layout import Column, Line, Section, Table, clean, count, ms
from ddpprof.model import UNKNOWN, DataParallelModule, Mark, Rank, Trace
from ddpprof.topics.devices import DEVICES, imbalance_ns
from ddpprof.topics.steps.overlap import spans_of


@dataclass(frozen=True, slots=True)
class DataParallelStep:
    """One step of one process, or the medians over steps."""

    num_forwards: int
    num_scattered_again: int
    """number of forwards whose input was just gathered by the previous forward"""
    replicate_ns: int
    scatter_ns: int
    gather_ns: int
    reduce_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class DataParallelReport:
    """Work of ``nn.DataParallel`` in one process; times are medians over steps, in ns per step."""

    rank: int
    modules: tuple[DataParallelModule, ...]
    """empty where ddpprof did not record"""
    step: DataParallelStep | None


def data_parallel_of_rank(rank: Rank, steps: Sequence[int], _modules: object = ()) -> DataParallelReport | None:
    """Measure the rank in the steps with these indices; ``None`` if it has no such module and calls none in them."""
    modules = rank.record.data_parallel if rank.record is not None else ()
    trace = rank.trace
    measured = None if trace is None else median_data_parallel([measure_data_parallel(trace, step) for step in steps])
    return DataParallelReport(rank.rank, modules, measured) if modules or measured is not None else None


_PARTS = (Mark.REPLICATE, Mark.SCATTER, Mark.GATHER, Mark.REDUCE_GRADIENTS)


def measure_data_parallel(trace: Trace, step: int) -> DataParallelStep | None:
    """Measure one step; ``None`` if it has no ``DataParallel.forward``."""
    host = trace.host_spans
    forwards = np.flatnonzero((host.mark == Mark.DATA_PARALLEL) & (host.step == step))
    if not len(forwards):
        return None
    parts = [_launched_in(trace, step, mark) for mark in _PARTS]
    transfers = parts[0]
    for part in parts[1:]:
        transfers = merge(transfers, part)
    replicate, scatter, gather, reduce = parts
    return DataParallelStep(
        num_forwards=len(forwards),
        num_scattered_again=_num_scattered_again(trace, step),
        replicate_ns=replicate.total_ns,
        scatter_ns=scatter.total_ns,
        gather_ns=gather.total_ns,
        reduce_ns=reduce.total_ns,
        exposed_ns=subtract(transfers, spans_of(trace.compute, step)).total_ns,
    )


def _launched_in(trace: Trace, step: int, mark: Mark) -> Spans:
    """Return the communication and copies that were launched while the host was in one of the marks."""
    host = trace.host_spans
    rows = np.flatnonzero((host.mark == mark) & (host.step == step))
    inside = union_of(host, rows)
    spans = []
    for table in (trace.collectives, trace.copies):
        known = (table.step == step) & (table.launched_ns != UNKNOWN)
        chosen = np.flatnonzero(known & inside.contains(table.launched_ns))
        spans.append(union_of(table, chosen))
    return merge(*spans)


def _num_scattered_again(trace: Trace, step: int) -> int:
    """Count forwards that scatter after another has gathered, with no backward pass between them."""
    host = trace.host_spans
    rows = np.flatnonzero((host.step == step) & np.isin(host.mark, _STORY))
    again, gathered = 0, False
    forward_end = 0
    for row in rows.tolist():
        mark, start = Mark(host.mark[row]), int(host.start_ns[row])
        if mark in (Mark.BACKWARD, Mark.OPTIMIZER):
            gathered = False
        elif mark is Mark.DATA_PARALLEL:
            forward_end, scattered = int(host.end_ns[row]), gathered
            gathered = False
        elif start < forward_end and mark is Mark.GATHER:
            gathered = True
        elif start < forward_end and mark is Mark.SCATTER and scattered:
            again, scattered = again + 1, False
    return again


_STORY = (Mark.DATA_PARALLEL, Mark.SCATTER, Mark.GATHER, Mark.BACKWARD, Mark.OPTIMIZER)


def median_data_parallel(steps: Sequence[DataParallelStep | None]) -> DataParallelStep | None:
    """Return the median of each column; ``None`` if no step has a ``DataParallel.forward``."""
    known = [step for step in steps if step is not None]
    if not known:
        return None
    return DataParallelStep(
        *(round(median(getattr(step, column.name) for step in known)) for column in fields(DataParallelStep))
    )


def data_parallel(found: DataParallelReport, view: View) -> Iterator[Finding]:
    """Report ``nn.DataParallel`` used instead of DDP."""
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
            f"them, and outputs ({in_ms(step.gather_ns)}) and gradients ({in_ms(step.reduce_ns)}) back; "
            f"{in_ms(step.exposed_ns)} of that is exposed"
        )
        gain = step.exposed_ns + imbalance_ns(loads)
    if loads:
        busiest = max(loads, key=lambda load: load.compute_ns)
        evidence += f"; device {busiest.device} computes {in_ms(imbalance_ns(loads))} more than the average device"
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
        f"nn.DataParallel has {where} to use",
        "it only calls its module",
        "Use the module itself, or DistributedDataParallel for several devices or processes.",
        None,
        numbers=only_known(num_devices=devices),
    )


def outputs_scattered_again(found: DataParallelReport, view: View) -> Iterator[Finding]:
    """Report a parallel loss, for which outputs gathered on one device are scattered again."""
    step = found.step
    if step is None or not step.num_scattered_again or not view.worth(step.gather_ns + step.scatter_ns):
        return
    yield Finding(
        "outputs-scattered-again",
        "One DataParallel gathers outputs on one device, and a second one scatters them again",
        f"in {step.num_scattered_again} of {step.num_forwards} forwards per step; scattering takes "
        f"{in_ms(step.scatter_ns)}, gathering {in_ms(step.gather_ns)}",
        "Compute the loss inside the module that DataParallel wraps, so that outputs stay on their devices and only "
        "losses are gathered. Better still, use DistributedDataParallel.",
        step.gather_ns + step.scatter_ns,
        numbers=only_known(
            num_scattered_again=step.num_scattered_again, scatter_ns=step.scatter_ns, gather_ns=step.gather_ns
        ),
    )


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


DATA_PARALLEL: Topic[DataParallelReport, DataParallelReport] = Topic(
    name="data_parallel",
    sections={"job": data_parallel_lines, "step": data_parallel_table},
    rules=(data_parallel, outputs_scattered_again),
    advice={
        "device-imbalance": "That device also computes the loss of the whole batch. Let the wrapped module return "
        "its loss, so that every device computes its own.",
        "memory-imbalance": "DataParallel gathers outputs on one device and keeps the optimizer's state there: use "
        "DistributedDataParallel.",
    },
    of_rank=data_parallel_of_rank,
    # There is one rank, except where each host runs a job of its own.
    rank_type=DataParallelReport,
    of_ranks=lambda ranks: ranks[0],
)
