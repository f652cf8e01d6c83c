"""The steps and ranks of a run as tables, for data frames and SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from ddpprof.engine.numbers import Number, Part
from ddpprof.engine.topic import ReportView, TableSchema
from ddpprof.topics.memory import MEMORY, DeviceUse, RankMemory
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.ranks.own_time import RankWaiting
from ddpprof.topics.steps.measure import LightStepReport, RankReport, RecordingCost, StepReport
from ddpprof.topics.steps.overlap import Overlap


@dataclass(frozen=True, slots=True)
class _Step:
    rank: Annotated[int, Number("rank in the job")]
    host: Annotated[str | None, Number("name of the rank's host")]
    is_usual: Annotated[bool, Number("whether the report's means include the step")]
    step: Annotated[StepReport, Part()]


@dataclass(frozen=True, slots=True)
class _LightStep:
    rank: Annotated[int, Number("rank in the job")]
    host: Annotated[str | None, Number("name of the rank's host")]
    step: Annotated[LightStepReport, Part()]


@dataclass(frozen=True, slots=True)
class _Rank:
    rank: Annotated[int, Number("rank in the job")]
    host: Annotated[str | None, Number("name of the rank's host")]
    ended: Annotated[str | None, Number("how the rank's training ended")]
    num_steps: Annotated[int, Number("number of profiled steps")]
    num_light_steps: Annotated[int, Number("number of steps without the profiler")]
    whole: Annotated[Overlap | None, Part("whole_", "in the whole trace, including the time between steps")]
    cost: Annotated[RecordingCost | None, Part("step_")]
    waiting: Annotated[RankWaiting | None, Part()]
    memory: Annotated[RankMemory | None, Part()]
    device: Annotated[DeviceUse | None, Part("device_")]
    """device on which the rank trains; ``None`` if unknown, or if it trains on several"""


def _steps(ranks: Sequence[RankReport], report: ReportView) -> Iterator[_Step]:
    for rank in ranks:
        averaged = {step.step for step in rank.averaged(report.usual_steps)}
        for step in rank.steps:
            yield _Step(rank.rank, rank.host, step.step in averaged, step)


def _light_steps(ranks: Sequence[RankReport], _report: ReportView) -> Iterator[_LightStep]:
    return (_LightStep(rank.rank, rank.host, step) for rank in ranks for step in rank.light_steps)


def _ranks(ranks: Sequence[RankReport], report: ReportView) -> Iterator[_Rank]:
    across = report[ACROSS]
    waiting = {one.rank: one for one in across.waiting} if across is not None else {}
    memory = {one.rank: one for one in report[MEMORY] or ()}
    for one in ranks:
        yield _rank(one, waiting.get(one.rank), memory.get(one.rank))


def _rank(one: RankReport, waiting: RankWaiting | None, memory: RankMemory | None) -> _Rank:
    own = [device for device in memory.devices if device.is_own] if memory is not None else []
    return _Rank(
        rank=one.rank,
        host=one.host,
        ended=one.ended,
        num_steps=len(one.steps),
        num_light_steps=len(one.light_steps),
        whole=one.whole,
        cost=one.recording_cost,
        waiting=waiting,
        memory=memory,
        device=own[0] if len(own) == 1 else None,
    )


STEP_TABLES: tuple[TableSchema[tuple[RankReport, ...]], ...] = (
    TableSchema(
        "steps",
        "One row per rank and profiled step. On an accelerator, the `wrapper_` columns are host times for launching "
        "work. All other times are device times for running it.",
        _Step,
        _steps,
    ),
    TableSchema(
        "light_steps",
        "One row per rank and step that ran without the profiler. All times are host times. Compare the modes `off` "
        "and `light` to see what recording costs.",
        _LightStep,
        _light_steps,
    ),
    TableSchema("ranks", "One row per rank.", _Rank, _ranks),
)
