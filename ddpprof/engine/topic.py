"""The interface of a topic: all that is known of one question about a job, from the measure to the words.

`report/topics.py` lists the topics. Other code calls this interface and names none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from ddpprof.findings import Finding, Observed
from ddpprof.layout import Section
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.model import DdpModule, OtherFile, Rank

_OfRank = TypeVar("_OfRank")
_OfRun = TypeVar("_OfRun")

Chapter = Literal["job", "step", "collectives", "cost"]
"""chapters of the report in which topics have sections"""


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
class Topic(Generic[_OfRank, _OfRun]):
    """The measures, rules and sections of one question; ``_OfRun`` is the type of its field in the report."""

    report_field: str
    """field of `Report`; also of `OfTopics` if the topic measures ranks. For a topic of another package, its name"""
    sections: Mapping[Chapter, Callable[[_OfRun], Iterable[Section]]]
    rules: tuple[Callable[[_OfRun, Observed], Iterator[Finding]], ...]
    advice: Mapping[str, str] = field(default_factory=dict)
    """rule of another topic → advice that this one knows better"""
    of_rank: Callable[[Rank, Sequence[int], Sequence[DdpModule]], _OfRank | None] | None = None
    """measures a rank in the steps with these indices, given the job's modules; ``None`` if it shows nothing of it"""
    of_ranks: Callable[[Sequence[_OfRank]], _OfRun | None] | None = None
    """combines the results of `of_rank`, of one rank or more"""
    rank_type: Any = None
    """type of what `of_rank` returns; only topics of other packages need it"""
    run_type: Any = None
    """type of what `of_ranks` returns, such as ``tuple[Row, ...]``; likewise"""
    file: str | None = None
    """name of the kind of file that it reads instead of ranks, if it does"""
    of_file: Callable[[OtherFile], FileMeasures[_OfRun] | None] | None = None
    """measures a file; ``None`` if it belongs to another topic"""
