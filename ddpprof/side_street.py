"""What a side street is: a way to train in parallel beside DDP, in one folder from the file to the words for it.

`report/side_streets.py` lists them all. The main road calls what is here, and names none of them.
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
"""of the report: those in which side streets have sections"""


@dataclass(frozen=True, slots=True)
class FileMeasures(Generic[_OfRun]):
    """What a file of another tool tells of its job."""

    measured: _OfRun
    backend: str | None
    steps_ns: Mapping[int, int]
    """number → duration"""
    waiting: tuple[RankWaiting, ...]
    waiting_after_start: tuple[RankWaiting, ...]
    """without the first step"""
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SideStreet(Generic[_OfRank, _OfRun]):
    """What one of them measures, finds and shows; ``_OfRun`` is the type of its field in the report."""

    folder: str
    report_field: str
    """of `Report`; of `BesideDdp`, too, where it measures ranks"""
    name: str
    """in the glossary"""
    meaning: str
    aliases: tuple[str, ...]
    sections: Mapping[Topic, Callable[[_OfRun], Iterable[Section]]]
    rules: tuple[Callable[[_OfRun, Observed], Iterator[Finding]], ...]
    advice: Mapping[str, str] = field(default_factory=dict)
    """rule of the main road → what to do about it here"""
    of_rank: Callable[[Rank, Sequence[int]], _OfRank | None] | None = None
    """takes the indices of the steps that count, too; ``None`` where the rank has nothing to do with it"""
    of_ranks: Callable[[Sequence[_OfRank]], _OfRun] | None = None
    """takes what `of_rank` has found, of one rank or more"""
    file: str | None = None
    """in words, where it reads one instead of ranks"""
    of_file: Callable[[OtherFile], FileMeasures[_OfRun] | None] | None = None
    """``None`` where the file is another side street's"""
