"""Collectives that the script calls itself, outside DDP."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import ABSENT, Section, clean, ms, table_of
from ddpprof.report import Report


def outside_table(report: Report) -> Iterable[Section]:
    if report.outside:
        yield table_of(
            "Collectives outside DDP, per step (medians)",
            report.outside,
            {
                "collective": lambda one: clean(one.kind.replace("_", "-"), most=30),
                "where": lambda one: one.place.value,
                "carries": lambda one: one.purpose.value,
                "calls": lambda one: str(one.num_calls),
                "kB": lambda one: ABSENT if one.num_bytes is None else f"{one.num_bytes / 1e3:.1f}",
                "ms": lambda one: ms(one.time_ns),
                "exposed ms": lambda one: ms(one.exposed_ns),
            },
            ("collective", "where", "carries"),
            "from the rank with the least exposed time, since others also wait for a slower one; exposed: while "
            "neither computation nor DDP's communication runs",
        )
