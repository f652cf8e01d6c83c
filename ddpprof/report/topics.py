"""The only list of topics: what each of them measures, finds and shows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ddpprof.engine.registry import further_topics
from ddpprof.engine.topic import Chapter, Topic
from ddpprof.findings import Observed
from ddpprof.layout import Section
from ddpprof.model import DdpModule, Rank
from ddpprof.report.tree import Report
from ddpprof.topics.data_parallel import DATA_PARALLEL, DataParallelReport
from ddpprof.topics.horovod.view import HOROVOD
from ddpprof.topics.memory import MEMORY, RankMemory
from ddpprof.topics.own_reduction import OWN_REDUCTION, OwnReduction
from ddpprof.topics.rpc import RPC, RankRpc
from ddpprof.topics.script_collectives import SCRIPT_COLLECTIVES, OutsideCalls

TOPICS: tuple[Topic[Any, Any], ...] = (DATA_PARALLEL, RPC, OWN_REDUCTION, HOROVOD, MEMORY, SCRIPT_COLLECTIVES)
"""topics in the order of their findings, sections and terms"""


@dataclass(frozen=True, slots=True)
class OfTopics:
    """What the topics measure of one rank."""

    data_parallel: DataParallelReport | None = None
    rpc: RankRpc | None = None
    own_reduction: OwnReduction | None = None
    memory: RankMemory | None = None
    outside: tuple[tuple[OutsideCalls, ...] | None, ...] | None = None
    further: Mapping[str, Any] = field(default_factory=dict)
    """topics of other packages, by name: what they measured, as lists, mappings and values"""


def measure_topics(rank: Rank, steps: Sequence[int], modules: Sequence[DdpModule]) -> OfTopics:
    """Measure the rank for every topic.

    `steps`: indices of the steps in its trace that count. `modules`: the DDP modules of the job.
    """
    found = {topic.report_field: topic.of_rank(rank, steps, modules) for topic in TOPICS if topic.of_rank is not None}
    further = {
        name: msgspec.to_builtins(measured)
        for name, topic in further_topics().items()
        if topic.of_rank is not None and (measured := topic.of_rank(rank, steps, modules)) is not None
    }
    return OfTopics(**found, further=further)


def combine_topics(ranks: Sequence[OfTopics]) -> dict[str, Any]:
    """Combine the measures of all ranks, by field of the report."""
    found = {}
    for topic in TOPICS:
        values = [value for one in ranks if (value := getattr(one, topic.report_field, None)) is not None]
        if values and topic.of_ranks is not None and (combined := topic.of_ranks(values)) is not None:
            found[topic.report_field] = combined
    return {**found, "further": _combined_further(ranks)}


def _combined_further(ranks: Sequence[OfTopics]) -> dict[str, Any]:
    found = {}
    for name, topic in further_topics().items():
        values = [msgspec.convert(one.further[name], topic.rank_type) for one in ranks if name in one.further]
        if values and topic.of_ranks is not None and (combined := topic.of_ranks(values)) is not None:
            found[name] = msgspec.to_builtins(combined)
    return found


def observe_topics(observed: Observed, found: Mapping[str, Any]) -> Observed:
    """Return `observed` with the topics' findings and advice; `found`: their measures by field of the report."""
    used = [(topic, found[topic.report_field]) for topic in TOPICS if topic.report_field in found]
    used += _further(found.get("further", {}))
    return replace(
        observed,
        beside=tuple(one for topic, value in used for rule in topic.rules for one in rule(value, observed)),
        advice={rule: advice for topic, _ in used for rule, advice in topic.advice.items()},
    )


def _further(found: Mapping[str, Any]) -> list[tuple[Topic[Any, Any], Any]]:
    """Return topics of other packages with what they show; those that are no longer installed are left out."""
    known = {name: topic for name, topic in further_topics().items() if name in found}
    return [(topic, msgspec.convert(found[name], topic.run_type)) for name, topic in known.items()]


def topics_of(report: Report) -> Iterator[tuple[Topic[Any, Any], Any]]:
    """Yield each topic that the report has measures of, with these measures."""
    for topic in TOPICS:
        if found := getattr(report, topic.report_field):
            yield topic, found
    yield from _further(report.further)


def sections_of_topics(report: Report, chapter: Chapter) -> Iterator[Section]:
    for topic, found in topics_of(report):
        if chapter in topic.sections:
            yield from topic.sections[chapter](found)


def file_of(report: Report) -> str | None:
    """Return the name of the kind of file that was read instead of ranks; ``None`` if ranks were read."""
    return next((topic.file for topic, _ in topics_of(report) if topic.file is not None), None)
