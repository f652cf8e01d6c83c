"""Rows of the bucket table: medians over backward passes, steps and ranks, and the rank that launched last.

Times are in ns since the end of the DDP forward.

transfer = shortest duration of the bucket's collective over the ranks; on other ranks it includes waiting
late by  = last rank's launch - first rank's launch, on the clock of one host
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from ddpprof.engine.numbers import DEVICE, HOST, Number
from ddpprof.model import DdpModule
from ddpprof.statistics import median_known
from ddpprof.topics.buckets.steps import BucketStep


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One bucket as shown in the report; unknown values are ``None``."""

    module: Annotated[int, Number("index of the DDP module")]
    index: Annotated[int, Number("index of the bucket, in the order of launch", column="bucket")]
    num_bytes: Annotated[int | None, Number("size of the bucket", column="size_bytes")]
    num_parameters: Annotated[int | None, Number("number of parameter tensors in the bucket")]
    first_parameter: Annotated[str | None, Number("name of the bucket's first parameter")]
    last_parameter: Annotated[str | None, Number("name of the bucket's last parameter")]
    first_ready_ns: Annotated[int | None, Number("when the bucket's first gradient was ready", HOST)]
    ready_ns: Annotated[int | None, Number("when the bucket's last gradient was ready", HOST)]
    launched_ns: Annotated[int | None, Number("when DDP launched its all-reduce", HOST)]
    started_ns: Annotated[int | None, Number("when the all-reduce started", DEVICE)]
    finished_ns: Annotated[int | None, Number("when the all-reduce finished", DEVICE)]
    transfer_ns: Annotated[int | None, Number("duration of the all-reduce without waiting", DEVICE)]
    slowest_parameter: Annotated[str | None, Number("parameter whose gradient was ready last in most steps")]
    slowest_parameter_delay_ns: Annotated[
        int | None, Number(("time between the second-to-last gradient and the last gradient"), HOST)
    ]
    late_rank: Annotated[int | None, Number("rank that launched last in most steps")]
    """``None`` with one rank, or if the ranks are on several hosts"""
    late_by_ns: Annotated[int | None, Number("time from the first to the last rank's launch", HOST)]
    num_passes: Annotated[int, Number("number of times the bucket is sent per step")] = 1
    """median number of synchronised backward passes through the module per step; each pass sends every bucket"""


def summarise_buckets(
    modules: Sequence[DdpModule], ranks: Mapping[int, Sequence[BucketStep]], one_clock: bool
) -> tuple[BucketRow, ...]:
    """Summarise all buckets. `ranks`: rank → its buckets in each step. `one_clock`: all ranks run on one host."""
    keys = sorted({(row.module, row.index) for rows in ranks.values() for row in rows})
    return tuple(_summarise(modules[key[0]], key, ranks, one_clock) for key in keys)


def _summarise(
    module: DdpModule, key: tuple[int, int], ranks: Mapping[int, Sequence[BucketStep]], one_clock: bool
) -> BucketRow:
    parameters = module.buckets[key[1]]
    return BucketRow(
        **summarise_times(key, ranks, one_clock, [parameter.name for parameter in module.parameters]),
        num_bytes=module.bucket_bytes(key[1]),
        num_parameters=len(parameters),
        first_parameter=module.parameters[parameters[0]].name,
        last_parameter=module.parameters[parameters[-1]].name,
    )


def summarise_times(
    key: tuple[int, int], ranks: Mapping[int, Sequence[BucketStep]], one_clock: bool, parameters: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the fields of a `BucketRow` that are derived from times.

    `key`: module and bucket index. `parameters`: names of the module's parameters.
    """
    mine = {rank: [row for row in rows if (row.module, row.index) == key] for rank, rows in ranks.items()}
    rows = [row for rank_rows in mine.values() for row in rank_rows]
    slowest = Counter(row.last_parameter for row in rows if row.last_parameter is not None).most_common(1)
    late_rank, late_by = _latest(mine) if one_clock else (None, None)
    delays = [
        row.ready_ns - row.previous_ready_ns
        for row in rows
        if row.ready_ns is not None and row.previous_ready_ns is not None
    ]
    return {
        "module": key[0],
        "index": key[1],
        "first_ready_ns": median_known([row.first_ready_ns for row in rows]),
        "ready_ns": median_known([row.ready_ns for row in rows]),
        "launched_ns": median_known([row.launched_ns for row in rows]),
        "started_ns": median_known([row.started_ns for row in rows]),
        "finished_ns": median_known([row.finished_ns for row in rows]),
        "transfer_ns": _transfer(mine),
        "slowest_parameter": parameters[slowest[0][0]] if slowest else None,
        "slowest_parameter_delay_ns": median_known(delays),
        "late_rank": late_rank,
        "late_by_ns": late_by,
        "num_passes": _num_passes(mine),
    }


def _num_passes(ranks: Mapping[int, Sequence[BucketStep]]) -> int:
    per_step = [num for rows in ranks.values() for num in Counter(row.step for row in rows).values()]
    return round(median(per_step)) if per_step else 1


def _by_pass(ranks: Mapping[int, Sequence[BucketStep]]) -> dict[tuple[int, int], dict[int, BucketStep]]:
    """Return (step, backward pass) → rank → the bucket in that pass."""
    passes: dict[tuple[int, int], dict[int, BucketStep]] = {}
    for rank, rows in ranks.items():
        for row in rows:
            passes.setdefault((row.step, row.pass_index), {})[rank] = row
    return passes


def _transfer(ranks: Mapping[int, Sequence[BucketStep]]) -> int | None:
    shortest = []
    for rows in _by_pass(ranks).values():
        known = [
            row.finished_ns - row.started_ns
            for row in rows.values()
            if row.finished_ns is not None and row.started_ns is not None
        ]
        if known:
            shortest.append(min(known))
    return round(median(shortest)) if shortest else None


def _latest(ranks: Mapping[int, Sequence[BucketStep]]) -> tuple[int | None, int | None]:
    last: Counter[int] = Counter()
    by = []
    for rows in _by_pass(ranks).values():
        launches = {r: row.origin_ns + row.launched_ns for r, row in rows.items() if row.launched_ns is not None}
        if len(launches) == len(ranks) > 1:
            last[max(launches, key=lambda r: launches[r])] += 1
            by.append(max(launches.values()) - min(launches.values()))
    return (last.most_common(1)[0][0], round(median(by))) if by else (None, None)
