"""Collectives that the script calls itself, outside DDP."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import ABSENT, Column, Section, Table, ms
from ddpprof.report import Report


def outside_table(report: Report) -> Iterable[Section]:
    if not report.outside:
        return
    rows = tuple(
        (
            one.kind.replace("_", "-"),
            one.place.value,
            one.purpose.value,
            str(one.num_calls),
            ABSENT if one.num_bytes is None else f"{one.num_bytes / 1e3:.1f}",
            ms(one.time_ns),
            ms(one.exposed_ns),
        )
        for one in report.outside
    )
    names = ("collective", "where", "carries", "calls", "kB", "ms", "exposed ms")
    words = ("collective", "where", "carries")
    yield Table(
        "Collectives outside DDP, per step (medians)",
        tuple(Column(name, is_number=name not in words) for name in names),
        rows,
        "from the rank with the least exposed time, since others also wait for a slower one; exposed: while neither "
        "computation nor DDP's communication runs",
    )
