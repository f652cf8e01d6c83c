"""The interface of a side street: a way to train in parallel beside DDP, in one folder from the file to its wording.

`report/side_streets.py` lists all of them. The main road calls this interface and names no side street.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ddpprof.findings import Finding, Observed
from ddpprof.layout import Section
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.model import OtherFile, Rank

_OfRank = TypeVar("_OfRank")
_OfRun = TypeVar("_OfRun")

Topic = Literal["job", "step", "collectives"]
"""topics of the report in which side streets have sections"""


@dataclass(frozen=True, slots=True)
class FileMeasures(Generic[_OfRun]):
    """Measures of a job from a file of another tool."""

    measured: _OfRun
    backend: str | None
    steps_ns: Mapping[int, int]
    """step number → duration"""
    waiting: tuple[RankWaiting, ...]
    waiting_after_start: tuple[RankWaiting, ...]
    """waiting without the first step"""
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SideStreet(Generic[_OfRank, _OfRun]):
    """The measures, rules and sections of one side street; ``_OfRun`` is the type of its field in the report."""

    folder: str
    report_field: str
    """field of `Report`; also of `BesideDdp` if the side street measures ranks"""
    sections: Mapping[Topic, Callable[[_OfRun], Iterable[Section]]]
    rules: tuple[Callable[[_OfRun, Observed], Iterator[Finding]], ...]
    advice: Mapping[str, str] = field(default_factory=dict)
    """rule of the main road → advice for this side street"""
    of_rank: Callable[[Rank, Sequence[int]], _OfRank | None] | None = None
    """measures the rank in the steps with these indices; ``None`` if the rank has nothing to do with the side street"""
    of_ranks: Callable[[Sequence[_OfRank]], _OfRun] | None = None
    """combines the results of `of_rank`, of one rank or more"""
    file: str | None = None
    """name of the kind of file that it reads instead of ranks, if it does"""
    of_file: Callable[[OtherFile], FileMeasures[_OfRun] | None] | None = None
    """measures a file; ``None`` if it belongs to another side street"""
