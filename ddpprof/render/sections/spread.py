"""How far many ranks differ in one step; there are too many bars to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ddpprof.layout import MAX_RANKS, PARTS, Column, Section, Table, ms
from ddpprof.render.sections.steps import bar_parts_ns, typical_step
from ddpprof.report import Report


def spread_table(report: Report) -> Iterable[Section]:
    ranks, values = parts_of_ranks(report)
    if len(ranks) <= MAX_RANKS:
        return
    columns = [*zip(PARTS, np.array(values, np.int64).T.tolist(), strict=True), ("step", [sum(row) for row in values])]
    yield Table(
        f"All {len(ranks)} ranks, ms: step {typical_step(report)}",
        (Column("", is_number=False), *map(Column, ("least", "median", "90% below", "most", "of rank"))),
        tuple(_row(name, column, ranks) for name, column in columns),
    )


def parts_of_ranks(report: Report) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the ranks that have the step of median length, and the `PARTS` of each."""
    number = typical_step(report)
    found = [
        (rank.rank, bar_parts_ns(step.parts))
        for rank in report.ranks
        for step in rank.measured_steps
        if step.step == number and step.parts is not None
    ]
    return [rank for rank, _ in found], [parts for _, parts in found]


def _row(name: str, values_ns: Sequence[int], ranks: Sequence[int]) -> tuple[str, ...]:
    quantiles = np.quantile(np.array(values_ns), (0, 0.5, 0.9, 1)).tolist()
    return (name, *map(ms, quantiles), str(ranks[int(np.argmax(values_ns))]))
