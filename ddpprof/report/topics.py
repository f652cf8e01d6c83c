"""The only list of topics: what each of them measures, finds and shows about a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec

from ddpprof.engine.finding import Finding
from ddpprof.engine.findings import find
from ddpprof.engine.packing import decode, encode
from ddpprof.engine.registry import further_topics
from ddpprof.engine.topic import Chapter, Topic, View
from ddpprof.layout import Section
from ddpprof.model import DdpModule, Rank
from ddpprof.report.tree import Report
from ddpprof.topics.accumulation import ACCUMULATION
from ddpprof.topics.attempts import ATTEMPTS
from ddpprof.topics.bound import BOUND
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.checkpoints import CHECKPOINTS
from ddpprof.topics.compiled_graphs import COMPILED_GRAPHS
from ddpprof.topics.data import DATA
from ddpprof.topics.data_parallel import DATA_PARALLEL
from ddpprof.topics.devices import DEVICES
from ddpprof.topics.facts import FACTS
from ddpprof.topics.failure import FAILURE
from ddpprof.topics.hangs import HANGS
from ddpprof.topics.horovod.view import HOROVOD
from ddpprof.topics.host_threads import HOST_THREADS
from ddpprof.topics.idle import IDLE
from ddpprof.topics.layer_collectives import LAYER_COLLECTIVES
from ddpprof.topics.losses import LOSSES
from ddpprof.topics.memory import MEMORY
from ddpprof.topics.overlap_slowdown.view import KERNELS, OVERLAP_SLOWDOWN
from ddpprof.topics.own_reduction import OWN_REDUCTION
from ddpprof.topics.random_numbers import RANDOM_NUMBERS
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.ranks.rules import LATENESS
from ddpprof.topics.replicas import REPLICAS
from ddpprof.topics.rpc import RPC
from ddpprof.topics.script_collectives import SCRIPT_COLLECTIVES
from ddpprof.topics.steps.view import STEPS
from ddpprof.topics.unused_parameters import UNUSED_PARAMETERS
from ddpprof.topics.whole_run import WHOLE_RUN
from ddpprof.topics.wrapper import BUFFER_SYNCS, GRADIENT_COPIES

TOPICS: tuple[Topic[Any, Any], ...] = (
    FACTS,
    FAILURE,
    ATTEMPTS,
    STEPS,
    ACROSS,
    WHOLE_RUN,
    ACCUMULATION,
    BUCKETS,
    COMPILED_GRAPHS,
    LATENESS,
    OVERLAP_SLOWDOWN,
    KERNELS,
    IDLE,
    HOST_THREADS,
    UNUSED_PARAMETERS,
    BUFFER_SYNCS,
    GRADIENT_COPIES,
    DATA_PARALLEL,
    RPC,
    OWN_REDUCTION,
    HOROVOD,
    MEMORY,
    SCRIPT_COLLECTIVES,
    LAYER_COLLECTIVES,
    DEVICES,
    LOSSES,
    REPLICAS,
    DATA,
    RANDOM_NUMBERS,
    HANGS,
    CHECKPOINTS,
    BOUND,
)
"""topics in the order of their findings and sections; a topic sees the results of earlier topics"""


def _all_topics() -> Iterator[Topic[Any, Any]]:
    yield from TOPICS
    yield from further_topics().values()


def measure_topics(rank: Rank, steps: Sequence[int], modules: Sequence[DdpModule]) -> dict[str, bytes]:
    """Measure the rank for every topic. Return topic name → bytes; only the topic itself knows the type.

    `steps`: indices of the steps in its trace that count. `modules`: the DDP modules of the job.
    """
    measured = ((one, one.of_rank(rank, steps, modules)) for one in _all_topics() if one.of_rank is not None)
    return {topic.name: encode(of_rank) for topic, of_rank in measured if of_rank is not None}


def with_topics(view: View, ranks: Sequence[Mapping[str, bytes]]) -> View:
    """Return the view with the topics' results. `ranks`: the return value of `measure_topics` for each of them."""
    for topic in (one for one in _all_topics() if one.name not in view.shown):
        shown = topic.of_run(view) if topic.of_run is not None else _combined(topic, ranks)
        if shown is not None:
            view = replace(view, shown={**view.shown, topic.name: shown})
    return view


def _combined(topic: Topic[Any, Any], ranks: Sequence[Mapping[str, bytes]]) -> Any:
    if topic.of_ranks is None:
        return None
    values = [decode(one[topic.name], topic.rank_type) for one in ranks if topic.name in one]
    return topic.of_ranks(values) if values else None


def find_all(view: View) -> tuple[Finding, ...]:
    return find(view, _all_topics())


_IN_REPORT = frozenset(field.name for field in fields(Report))


def report_fields(view: View) -> dict[str, Any]:
    """Return the topics' results as fields of the report."""
    own = {topic.name: view.shown[topic.name] for topic in TOPICS if topic.name in _IN_REPORT & view.shown.keys()}
    further = {name: msgspec.to_builtins(view.shown[name]) for name in further_topics() if name in view.shown}
    return {**own, "further": further}


def topics_of(report: Report) -> Iterator[tuple[Topic[Any, Any], Any]]:
    """Yield each topic that the report has measures of, with these measures.

    Topics of other packages that are no longer installed are left out.
    """
    for topic in TOPICS:
        if topic.name in _IN_REPORT and (found := getattr(report, topic.name)):
            yield topic, found
    for name, topic in further_topics().items():
        if name in report.further:
            yield topic, msgspec.convert(report.further[name], topic.run_type)


def sections_of_topics(report: Report, chapter: Chapter) -> Iterator[Section]:
    for topic, found in topics_of(report):
        if chapter in topic.sections:
            yield from topic.sections[chapter](found, report)


def file_of(report: Report) -> str | None:
    """Return the name of the kind of file that was read instead of ranks; ``None`` if ranks were read."""
    return next((topic.file for topic, _ in topics_of(report) if topic.file is not None), None)
