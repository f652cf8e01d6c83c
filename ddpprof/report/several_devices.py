"""What a process with several accelerators does with them: ``nn.DataParallel``, layers on different devices."""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.events import Rank, Trace
from ddpprof.measures.data_parallel import measure_data_parallel, median_data_parallel
from ddpprof.measures.devices import DeviceLoad, measure_devices, median_load
from ddpprof.report.ranks import baseline_steps, training_steps, whole_steps
from ddpprof.report.tree import DataParallelReport


def data_parallel_report(ranks: Sequence[Rank]) -> DataParallelReport | None:
    """Of the first rank that uses it: there is no other, but where each host runs a job of its own."""
    for rank in ranks:
        modules = rank.record.data_parallel if rank.record is not None else ()
        trace, steps = rank.trace, _steps(rank)
        measured = median_data_parallel([measure_data_parallel(trace, step) for step in steps]) if trace else None
        if modules or measured is not None:
            return DataParallelReport(rank.rank, modules, measured)
    return None


def device_loads(rank: Rank) -> tuple[DeviceLoad, ...]:
    """Medians over the rank's steps; empty where it has one device."""
    if rank.trace is None:
        return ()
    trace: Trace = rank.trace
    return median_load([measure_devices(trace, step) for step in _steps(rank)])


def _steps(rank: Rank) -> list[int]:
    if rank.trace is None:
        return []
    left_out = set(baseline_steps(rank))
    return [step for step in whole_steps(rank.trace, training_steps(rank.record)) if step not in left_out]
