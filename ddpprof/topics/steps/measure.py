"""Measure the steps of one rank, from its trace and its record, and the cost of recording them. Show both as tables.

`TorchTimes` compares the times with the times that DDP itself measures (`_get_ddp_logging_data()`). DDP's definitions
differ from ddpprof's. `TorchTimes` contains times by DDP's definitions, computed from ddpprof's events:

    forward    start to end of the DDP forward, including buffer sync       (ddpprof: forward ops only)
    backward   end of the DDP forward to the end of the last autograd node  (ddpprof: backward ops only)
    comm       first bucket's launch until all buckets are finished and copied into the gradients, including gaps
               (ddpprof: union of the collectives)
    overlap    the part of `comm` before the end of `backward`
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import exp, log
from statistics import median
from typing import Annotated

from ddpprof.engine.numbers import DEVICE, HOST, Number, Part
from ddpprof.engine.topic import ReportView, TableSchema
from ddpprof.model import DdpModule, Mark, Rank, RecordedStep, StepMode, Trace
from ddpprof.model.record import TORCH_TIMES
from ddpprof.statistics import mean_known, median_known
from ddpprof.topics.buckets.steps import BucketStep, measure_buckets
from ddpprof.topics.devices import DeviceLoad, measure_devices, median_load
from ddpprof.topics.idle import Gaps, Idle, find_gaps, measure_idle
from ddpprof.topics.memory import MEMORY, DeviceUse, RankMemory
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.ranks.own_time import RankWaiting
from ddpprof.topics.steps.breakdown import Breakdown, RecordedBreakdown, measure_recorded_breakdown, split_step
from ddpprof.topics.steps.overlap import Overlap, measure_overlap, measure_trailing
from ddpprof.topics.wrapper import WrapperCost, measure_wrapper_cost


@dataclass(frozen=True, slots=True)
class StepReport:
    """One profiled step of one rank."""

    step: Annotated[int, Number("number of the step, counted from the start of training")]
    duration_ns: Annotated[int, Number("duration of the step", DEVICE, metric="step")]
    compute_ns: Annotated[int, Number("time with computation", DEVICE, metric="compute")]
    comm_ns: Annotated[int, Number("time with communication", DEVICE, metric="comm")]
    overlap_ns: Annotated[int, Number("time with both computation and communication", DEVICE, metric="overlap")]
    exposed_ns: Annotated[int, Number("time with communication but no computation", DEVICE, metric="exposed")]
    trailing_ns: Annotated[
        int | None, Number("gradient communication after the backward pass", DEVICE, metric="trailing")
    ]
    copy_ns: Annotated[int, Number("time in which data is copied between host and device", DEVICE)]
    num_comm_kernels: Annotated[int, Number("number of collectives")]
    parts: Annotated[Breakdown | None, Part("part_", clock=DEVICE)]
    wrapper: Annotated[WrapperCost, Part("wrapper_", clock=HOST)]
    torch_times: Annotated[TorchTimes | None, DEVICE]
    idle: Annotated[Idle | None, Part("idle_", clock=DEVICE)] = None
    """causes of the idle time ``parts.idle_ns`` on an accelerator; ``None`` on CPU"""
    is_whole: bool = True
    """False if the trace starts or ends in the middle of the step on an accelerator; such steps are excluded
    from means
    """


@dataclass(frozen=True, slots=True)
class LightStepReport:
    """One step that ran without the profiler."""

    step: Annotated[int, Number("number of the step, counted from the start of training")]
    mode: Annotated[str, Number("`off`, `light`, or `timeline` for a Horovod timeline")]
    duration_ns: Annotated[int, Number("duration of the step", HOST, metric="step")]
    parts: Annotated[RecordedBreakdown | None, Part("part_", clock=HOST)]


@dataclass(frozen=True, slots=True)
class RankReport:
    rank: int
    host: str | None
    ended: str | None
    whole: Annotated[Overlap | None, DEVICE]
    """overlap in the whole trace, including the time between steps"""
    steps: tuple[StepReport, ...]
    light_steps: tuple[LightStepReport, ...]
    recording_cost: Annotated[RecordingCost | None, HOST]
    devices: Annotated[tuple[DeviceLoad, ...], DEVICE] = ()
    """median load of each device over the steps; empty if the rank uses only one device"""

    @property
    def measured_steps(self) -> tuple[StepReport, ...]:
        """Steps with work on the device. All means exclude other steps."""
        return tuple(step for step in self.steps if step.parts is not None)

    def averaged(self, usual_steps: Collection[int]) -> tuple[StepReport, ...]:
        """Return the steps over which tables average. `usual_steps`: their numbers; if empty, return all steps."""
        return tuple(step for step in self.measured_steps if not usual_steps or step.step in usual_steps)


TIMED_MODES = (StepMode.OFF, StepMode.LIGHT)
"""modes of steps without the profiler; light recording may be on"""


def profiler_cost(ranks: Iterable[RankReport], usual_steps: Collection[int]) -> int | None:
    """Return by how much profiled steps of an accelerator are longer than other steps, in ns, on the rank with the
    smallest difference; ``None`` if no step ran without the profiler.

    Durations of other steps are host times. They are too short if the host runs ahead, but then the accelerator would
    not wait for the host without the profiler.
    """
    costs = []
    for rank in ranks:
        profiled_ns = mean_known(step.duration_ns for step in rank.averaged(usual_steps))
        timed_ns = median_known(step.duration_ns for step in rank.light_steps if step.mode in TIMED_MODES)
        if profiled_ns is not None and timed_ns is not None:
            costs.append(max(0, profiled_ns - timed_ns))
    return min(costs, default=None)


def profiled_ratio(ranks: Sequence[RankReport], usual_ns: int | None) -> float:
    """Return the duration of profiled steps divided by that of other steps, on the rank with the smallest difference.

    `usual_ns`: duration of other steps of the run; if it is ``None``, the unrecorded steps of each rank are used.
    Returns 1 if profiled steps are not longer, if the difference may be due to chance, or if it is unknown.
    """
    if usual_ns is not None:
        profiled = [mean_known(step.duration_ns for step in rank.measured_steps) for rank in ranks]
        return max(1.0, min(((ns or 0) / usual_ns for ns in profiled), default=1.0))
    ratios = []
    for cost in (rank.recording_cost for rank in ranks):
        ratio = cost.profiled_ratio if cost is not None else None
        ratios.append(1.0 if cost is None or ratio is None or cost.is_noise(ratio) else ratio)
    return min(ratios, default=1.0)


def rank_report(rank: Rank, _steps: Sequence[int], modules: Sequence[DdpModule]) -> RankReport:
    trace, record = rank.trace, rank.record
    steps = _step_reports(rank, modules)
    traced = {step.step for step in steps}
    return RankReport(
        rank=rank.rank,
        host=record.host if record else trace.host if trace else None,
        ended=record.ended if record else None,
        whole=measure_overlap(trace, None) if trace else None,
        steps=steps,
        light_steps=tuple(
            LightStepReport(s.number, s.mode, s.end_ns - s.start_ns, measure_recorded_breakdown(s))
            for s in rank.training_steps
            if s.number not in traced
        ),
        recording_cost=measure_recording_cost(record.training_steps, record.profiler_pause_ns) if record else None,
        devices=_devices(rank),
    )


def _step_reports(rank: Rank, modules: Sequence[DdpModule]) -> tuple[StepReport, ...]:
    trace = rank.trace
    if trace is None:
        return ()
    by_number, gaps = {step.number: step for step in rank.training_steps}, find_gaps(trace)
    return tuple(_step_report(trace, index, by_number, modules, gaps) for index in rank.measured_step_indices)


def _step_report(
    trace: Trace, index: int, recorded: dict[int, RecordedStep], modules: Sequence[DdpModule], gaps: Gaps | None
) -> StepReport:
    step = trace.steps[index]
    split = split_step(trace, index)
    return StepReport(
        step=step.number,
        duration_ns=step.duration_ns if split is None or trace.device == "cpu" else split.breakdown.step_ns,
        is_whole=split is None or split.is_whole,
        **asdict(measure_overlap(trace, index)),
        trailing_ns=measure_trailing(trace, index),
        parts=split.breakdown if split is not None else None,
        wrapper=measure_wrapper_cost(trace, index, recorded.get(step.number)),
        torch_times=_torch_times(trace, recorded, step.number, modules),
        idle=measure_idle(split.idle, gaps) if split is not None and gaps is not None else None,
    )


def _torch_times(
    trace: Trace, recorded: dict[int, RecordedStep], number: int, modules: Sequence[DdpModule]
) -> TorchTimes | None:
    """Return the step's times and DDP's own times, which are in the next step's record; ``None`` if unknown."""
    step, following = recorded.get(number), recorded.get(number + 1)
    if step is None or following is None or len(modules) != 1:
        return None
    logged = following.torch_stats.get(0)
    return compare_with_torch(0, step, measure_buckets(modules, step, trace), trace, logged) if logged else None


def _devices(rank: Rank) -> tuple[DeviceLoad, ...]:
    """Return the load of each device as medians over steps; empty if the rank has only one device."""
    if rank.trace is None:
        return ()
    return median_load([measure_devices(rank.trace, step) for step in rank.measured_step_indices])


@dataclass(frozen=True, slots=True)
class TorchTimes:
    """Times of one step of a DDP module by DDP's definitions, in ns, as measured by ddpprof and by DDP (`torch_`)."""

    forward_ns: int
    backward_ns: int
    comm_ns: int
    overlap_ns: int
    torch_forward_ns: int
    torch_backward_ns: int
    torch_comm_ns: int
    torch_overlap_ns: int


def compare_with_torch(
    module: int, step: RecordedStep, buckets: tuple[BucketStep, ...], trace: Trace, logged: Mapping[str, int]
) -> TorchTimes | None:
    """Compare a step's times with those `logged` by DDP in the same iteration; ``None`` if a time is missing."""
    forwards = [f for f in step.forwards if f.module == module and f.synchronizes]
    mine = [b for b in buckets if b.module == module]
    launched = [b.launched_ns for b in mine if b.launched_ns is not None]
    finished = [b.finished_ns for b in mine if b.finished_ns is not None]
    if len(forwards) != 1 or not mine or any(name not in logged for name in TORCH_TIMES):
        return None
    if len(launched) < len(mine) or len(finished) < len(mine):
        return None
    backward = _last_end(trace, step.number, Mark.BACKWARD, mine[0].origin_ns, at_least=max(launched))
    finished_all = _last_end(trace, step.number, Mark.BUCKET_COPY_OUT, mine[0].origin_ns, at_least=max(finished))
    return TorchTimes(
        forward_ns=forwards[0].inner_end_ns - forwards[0].start_ns,
        backward_ns=backward,
        comm_ns=finished_all - min(launched),
        overlap_ns=max(0, min(backward, finished_all) - min(launched)),
        torch_forward_ns=logged[TORCH_TIMES[0]],
        torch_backward_ns=logged[TORCH_TIMES[1]],
        torch_comm_ns=logged[TORCH_TIMES[2]],
        torch_overlap_ns=logged[TORCH_TIMES[3]],
    )


def _last_end(trace: Trace, number: int, mark: Mark, origin_ns: int, at_least: int) -> int:
    """Return the end of the step's last host span with this mark, in ns since `origin_ns`."""
    spans = trace.host_spans
    step = [s.number for s in trace.steps].index(number)
    ends = spans.end_ns[(spans.step == step) & (spans.mark == mark)]
    if trace.epoch_ns is None or not len(ends):
        return at_least
    return max(at_least, int(ends.max()) + trace.epoch_ns - origin_ns)


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """Recording overhead of one rank. Step times are medians in ns, or ``None`` if there are no such steps."""

    off_ns: Annotated[int | None, Number("median step time with recording off")]
    light_ns: Annotated[int | None, Number("median step time with light recording")]
    profiled_ns: Annotated[int | None, Number("median step time under the profiler")]
    light_ratio: Annotated[
        float | None,
        Number("duration of a lightly recorded step divided by that of the adjacent unrecorded step (median)"),
    ]
    num_pairs: int
    spread: float | None
    """spread of the steps with recording off: (largest - smallest) / median"""
    profiler_pause_ns: int | None
    """time for which ddpprof paused training, to begin and end recording and profiling, and to write the trace"""

    @property
    def profiled_ratio(self) -> float | None:
        return self.profiled_ns / self.off_ns if self.profiled_ns and self.off_ns else None

    def is_noise(self, ratio: float) -> bool:
        """Return whether this ratio may be due to chance, because the times of unrecorded steps vary just as much."""
        return ratio < 1 or (self.spread is not None and abs(ratio - 1) < self.spread)


def measure_recording_cost(steps: Sequence[RecordedStep], profiler_pause_ns: int | None) -> RecordingCost | None:
    """Compare steps with recording off, with light recording, and with the profiler; ``None`` if no step was recorded.

        light ratio = median over pairs of consecutive steps of (light step / off step); for an even number of pairs,
                      the geometric mean of the middle two

    The off step comes first in half of the pairs (off light, off light, light off, light off), so that neither a slow
    drift of the machine nor a script in which every second or fourth step is longer biases the ratio.
    """
    if not steps:
        return None
    durations = {
        mode: [s.end_ns - s.start_ns for s in steps if s.mode is mode]
        for mode in (StepMode.OFF, StepMode.LIGHT, StepMode.PROFILED)
    }
    ratios = _ratios_of_pairs(steps)
    off_steps = durations[StepMode.OFF]
    typical = median(off_steps) if len(off_steps) > 1 else 0
    return RecordingCost(
        off_ns=median_known(off_steps),
        light_ns=median_known(durations[StepMode.LIGHT]),
        profiled_ns=median_known(durations[StepMode.PROFILED]),
        light_ratio=exp(median(map(log, ratios))) if ratios else None,
        num_pairs=len(ratios),
        spread=(max(off_steps) - min(off_steps)) / typical if typical else None,
        profiler_pause_ns=profiler_pause_ns,
    )


def _ratios_of_pairs(steps: Sequence[RecordedStep]) -> list[float]:
    """Return the duration ratio light / off of each pair of consecutive steps. No step belongs to two pairs."""
    ratios, last = [], -1
    for one, other in pairwise(steps):
        took_ns = {step.mode: step.end_ns - step.start_ns for step in (one, other)}
        is_pair = took_ns.keys() == {StepMode.OFF, StepMode.LIGHT} and other.number == one.number + 1
        if is_pair and one.number > last and min(took_ns.values()) > 0:
            ratios.append(took_ns[StepMode.LIGHT] / took_ns[StepMode.OFF])
            last = other.number
    return ratios


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
    """device on which the rank trains; ``None`` if unknown, or if the rank trains on several devices"""


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
