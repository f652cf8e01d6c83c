"""Collectives by size, with the link's rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ddpprof.layout import ABSENT, Section, clean, cut_off, gigabytes_per_s, megabytes, ms, notes, table_of
from ddpprof.report import Report
from ddpprof.topics.collectives.table import CollectiveSummary

_MAX_ROWS = 24
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def collective_table(report: Report) -> Iterable[Section]:
    rows = report.across.collectives if report.across is not None else ()
    if not rows:
        return
    cells = (
        _CELLS if len({row.group for row in rows}) > 1 else {name: _CELLS[name] for name in _CELLS if name != "group"}
    )
    alone = max(row.num_ranks_read for row in rows) == 1
    said = notes(
        "not matched between ranks: transfer includes waiting for others, so there is no bandwidth"
        if alone
        else "transfer: shortest duration over the ranks; waiting: longest minus shortest duration (medians)",
        "calls and MB: of one rank, over all profiled steps",
        "" if alone else "busbw: of the link, as defined by nccl-tests; 1 GB is 10⁹ bytes",
        cut_off(len(rows), _MAX_ROWS, "rows"),
    )
    yield table_of("Collectives by size", rows[:_MAX_ROWS], cells, ("collective", "group"), said)


def _size_class(row: CollectiveSummary) -> str:
    if row.at_least_bytes is None or row.below_bytes is None:
        return ABSENT
    return f"{power_of_two(row.at_least_bytes)}–{power_of_two(row.below_bytes)}"


_CELLS: Mapping[str, Callable[[CollectiveSummary], str]] = {
    "collective": lambda row: clean(row.kind.replace("_", "-"), most=30),
    "group": lambda row: ABSENT if row.group is None else clean(row.group, most=30),
    "size": _size_class,
    "calls": lambda row: str(row.num_calls),
    "MB": lambda row: megabytes(row.num_bytes),
    "transfer ms": lambda row: ms(row.transfer_ns),
    "waiting ms": lambda row: ms(row.waiting_ns),
    "algbw GB/s": lambda row: gigabytes_per_s(row.algbw_bytes_per_s),
    "busbw GB/s": lambda row: gigabytes_per_s(row.busbw_bytes_per_s),
}


def power_of_two(num_bytes: int) -> str:
    unit = next(((size, name) for size, name in _SIZES if num_bytes >= size), None)
    return f"{num_bytes} B" if unit is None else f"{num_bytes // unit[0]} {unit[1]}"
