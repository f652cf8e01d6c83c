"""Collectives by size, with the link's rate."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import ABSENT, Column, Section, Table, clean, cut_off, megabytes, ms, notes
from ddpprof.measures.collectives.collective_table import CollectiveSummary
from ddpprof.report import Report

_MAX_ROWS = 24
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def collective_table(report: Report) -> Iterable[Section]:
    rows = report.across.collectives if report.across is not None else ()
    if not rows:
        return
    has_groups = len({row.group for row in rows}) > 1
    alone = max(row.num_ranks_read for row in rows) == 1
    group = ("group",) if has_groups else ()
    names = ("collective", *group, "size", "calls", "MB", "transfer ms", "waiting ms", "algbw GB/s", "busbw GB/s")
    said = notes(
        "not matched between ranks: transfer includes waiting for others, so there is no bandwidth"
        if alone
        else "transfer: shortest duration over the ranks; waiting: the rest of the longest (medians)",
        "calls, MB: for one rank over all profiled steps",
        "" if alone else "busbw: of the link, as defined by nccl-tests; 1 GB is 10⁹ bytes",
        cut_off(len(rows), _MAX_ROWS, "rows"),
    )
    yield Table(
        "Collectives by size",
        tuple(Column(name, is_number=name not in ("collective", "group")) for name in names),
        tuple(_row(row, has_groups) for row in rows[:_MAX_ROWS]),
        said,
    )


def _row(row: CollectiveSummary, has_groups: bool) -> tuple[str, ...]:
    group = (ABSENT if row.group is None else clean(row.group, most=30),) if has_groups else ()
    return (
        row.kind.replace("_", "-"),
        *group,
        _size_class(row),
        str(row.num_calls),
        megabytes(row.num_bytes),
        ms(row.transfer_ns),
        ms(row.waiting_ns),
        _rate(row.algbw_bytes_per_s),
        _rate(row.busbw_bytes_per_s),
    )


def _size_class(row: CollectiveSummary) -> str:
    if row.at_least_bytes is None or row.below_bytes is None:
        return ABSENT
    return f"{power_of_two(row.at_least_bytes)}–{power_of_two(row.below_bytes)}"


def power_of_two(num_bytes: int) -> str:
    unit = next(((size, name) for size, name in _SIZES if num_bytes >= size), None)
    return f"{num_bytes} B" if unit is None else f"{num_bytes // unit[0]} {unit[1]}"


def _rate(bytes_per_s: float | None) -> str:
    return ABSENT if bytes_per_s is None else f"{bytes_per_s / 1e9:.3g}"
