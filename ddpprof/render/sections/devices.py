"""One process with several accelerators: how much each works."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import MAX_RANKS, Column, Section, Table, cut_off, ms
from ddpprof.report import Report


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
