"""Facts about a rank, from its record and its trace, that several topics use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from ddpprof.engine.topic import Topic
from ddpprof.model import Rank, Record, RecordedStep
from ddpprof.statistics import median_known
from ddpprof.topics.accumulation import count_micro_steps
from ddpprof.topics.replicas import is_always_reduced


@dataclass(frozen=True, slots=True)
class RecordSummary:
    """Summary of a rank's record. Times are medians, in ns per step."""

    facts: Record
    """the rank's record, without the recorded steps and other large fields"""
    data_ns: int | None
    buffer_sync_ns: int | None
    num_micro_steps: int
    """number of batches whose gradients are accumulated per step"""
    evaluated_steps: tuple[int, ...]
    """numbers of the steps in which the script also called the DDP module without gradients, as in an evaluation"""


@dataclass(frozen=True, slots=True)
class TraceSummary:
    host: str | None
    device: str
    backend: str | None
    notes: tuple[str, ...]
    num_baseline_steps: int
    has_cuda: bool = True
    """False if the rank's accelerator supports neither CUDA nor HIP"""


@dataclass(frozen=True, slots=True)
class RankFacts:
    record: RecordSummary | None
    trace: TraceSummary | None


def facts_of(rank: Rank) -> RankFacts:
    record, trace = rank.record, rank.trace
    return RankFacts(
        _record_summary(record) if record is not None else None,
        TraceSummary(
            host=trace.host,
            device=trace.device,
            backend=trace.backend,
            has_cuda=trace.has_cuda,
            notes=trace.notes,
            num_baseline_steps=len(rank.baseline_step_indices),
        )
        if trace is not None
        else None,
    )


def _record_summary(record: Record) -> RecordSummary:
    steps = record.training_steps

    def usual(value: Callable[[RecordedStep], int | None]) -> int | None:
        return median_known(value(step) for step in steps if step.forwards)

    return RecordSummary(
        facts=_facts(record),
        data_ns=usual(lambda step: step.data_ns),
        buffer_sync_ns=usual(lambda step: sum(forward.buffer_sync_ns for forward in step.forwards)),
        num_micro_steps=count_micro_steps(steps),
        evaluated_steps=tuple(step.number for step in steps if step.has_evaluation),
    )


def _facts(record: Record) -> Record:
    steps = record.training_steps
    return structs.replace(
        record,
        steps=(),
        code_samples=None,
        modules=tuple(structs.replace(one, parameters=(), buckets=(), settings={}) for one in record.modules),
        loaders=tuple(one if one.feeds_training else structs.replace(one, batches=()) for one in record.loaders),
        replicas=tuple(one for one in record.replicas if is_always_reduced(one.module, steps)),
    )


FACTS: Topic[RankFacts, Any] = Topic(
    "facts", of_rank=lambda rank, _steps, _modules: facts_of(rank), rank_type=RankFacts
)
