"""What a process with several accelerators does with them: ``nn.DataParallel``, layers on different devices."""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.events import Rank
from ddpprof.measures.data_parallel import DataParallelStep, measure_data_parallel, median_data_parallel
from ddpprof.measures.devices import DeviceLoad, measure_devices, median_load
from ddpprof.report.ranks import training_steps, whole_steps
from ddpprof.report.tree import DataParallelReport


def data_parallel_report(ranks: Sequence[Rank]) -> DataParallelReport | None:
    """Of the first rank that uses it: there is no other, but where each host runs a job of its own."""
    for rank in ranks:
        modules = rank.record.data_parallel if rank.record is not None else ()
        measured = _measured(rank)
        if modules or measured is not None:
            return DataParallelReport(rank.rank, modules, measured)
    return None


def device_loads(rank: Rank) -> tuple[DeviceLoad, ...]:
    """Medians over the rank's steps; empty where it has one device."""
    if rank.trace is None:
        return ()
    steps = whole_steps(rank.trace, training_steps(rank.record))
    return median_load([measure_devices(rank.trace, step) for step in steps])


def _measured(rank: Rank) -> DataParallelStep | None:
    if rank.trace is None:
        return None
    steps = whole_steps(rank.trace, training_steps(rank.record))
    return median_data_parallel([measure_data_parallel(rank.trace, step) for step in steps])
