"""The only list of side streets: ways to train in parallel beside DDP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpprof.data_parallel.own_reduction import OwnReduction
from ddpprof.data_parallel.street import DATA_PARALLEL, OWN_REDUCTION
from ddpprof.data_parallel.transfers import DataParallelReport
from ddpprof.findings import Observed
from ddpprof.horovod.street import HOROVOD
from ddpprof.layout import Section
from ddpprof.model import Rank
from ddpprof.report.tree import Report
from ddpprof.rpc.calls import RankRpc
from ddpprof.rpc.street import RPC
from ddpprof.side_street import SideStreet, Topic

SIDE_STREETS: tuple[SideStreet[Any, Any], ...] = (DATA_PARALLEL, RPC, OWN_REDUCTION, HOROVOD)
"""side streets in the order of their findings, sections and terms"""


@dataclass(frozen=True, slots=True)
class BesideDdp:
    """The side streets' measures of one rank."""

    data_parallel: DataParallelReport | None = None
    rpc: RankRpc | None = None
    own_reduction: OwnReduction | None = None


def measure_beside(rank: Rank, steps: Sequence[int]) -> BesideDdp:
    """Measure the rank for every side street; `steps` are the indices of the steps in its trace that count."""
    found = {street.report_field: street.of_rank(rank, steps) for street in SIDE_STREETS if street.of_rank is not None}
    return BesideDdp(**found)


def combine_beside(ranks: Sequence[BesideDdp]) -> dict[str, Any]:
    """Combine the measures of all ranks, by field of the report."""
    found = {}
    for street in SIDE_STREETS:
        values = [value for one in ranks if (value := getattr(one, street.report_field, None)) is not None]
        if values and street.of_ranks is not None:
            found[street.report_field] = street.of_ranks(values)
    return found


def observe_beside(observed: Observed, found: Mapping[str, Any]) -> Observed:
    """Return `observed` with the side streets' findings and advice; `found`: their measures by field of the report."""
    used = [(street, found[street.report_field]) for street in SIDE_STREETS if street.report_field in found]
    return replace(
        observed,
        beside=tuple(one for street, value in used for rule in street.rules for one in rule(value, observed)),
        advice={rule: advice for street, _ in used for rule, advice in street.advice.items()},
    )


def streets_of(report: Report) -> Iterator[tuple[SideStreet[Any, Any], Any]]:
    """Yield each side street that the report has measures of, with these measures."""
    for street in SIDE_STREETS:
        if found := getattr(report, street.report_field):
            yield street, found


def sections_of_streets(report: Report, topic: Topic) -> Iterator[Section]:
    for street, found in streets_of(report):
        if topic in street.sections:
            yield from street.sections[topic](found)


def file_of(report: Report) -> str | None:
    """Return the name of the kind of file that was read instead of ranks; ``None`` if ranks were read."""
    return next((street.file for street, _ in streets_of(report) if street.file is not None), None)
