"""What a report is: the measures of a run as one tree.

The JSON report is this tree, field by field; ``ddpprof schema`` prints its schema. ``None`` is what this run cannot
tell. Times are ns, sizes bytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ddpprof.data_parallel.own_reduction import OwnReduction
from ddpprof.data_parallel.transfers import DataParallelReport
from ddpprof.findings import Finding
from ddpprof.findings.predictions import Predicted
from ddpprof.horovod.reductions import HorovodSummary
from ddpprof.measures.buckets.bucket_table import BucketRow
from ddpprof.measures.collectives.collective_table import CollectiveSummary
from ddpprof.measures.collectives.script_collectives import OutsideCalls
from ddpprof.measures.kernels.devices import DeviceLoad
from ddpprof.measures.kernels.kernels import KernelSummary
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.measures.ranks.attempts import AttemptSummary
from ddpprof.measures.ranks.clock import HostClock, RankClock
from ddpprof.measures.ranks.failure import Failure
from ddpprof.measures.ranks.late_gradients import LateGradient
from ddpprof.measures.ranks.memory import RankMemory
from ddpprof.measures.ranks.stragglers import Stragglers
from ddpprof.measures.step.breakdown import Breakdown
from ddpprof.measures.step.idle import Idle
from ddpprof.measures.step.recording_cost import RecordingCost
from ddpprof.measures.step.torch_times import TorchTimes
from ddpprof.measures.step.wrapper import WrapperCost
from ddpprof.model import Kernel
from ddpprof.model.light_step import RecordedBreakdown
from ddpprof.rpc.calls import RankRpc

REPORT_FORMAT = 1
"""Version of the JSON report. It grows when a field changes its meaning or goes, not when one is added."""


@dataclass(frozen=True, slots=True)
class Module:
    """One DDP module."""

    name: str
    num_parameters: int
    parameter_bytes: int
    num_buckets: int
    bucket_cap_mib: float | None
    comm_hook: str | None
    settings: Mapping[str, str] = field(default_factory=dict)
    """DDP's constructor arguments by torch's names, as text"""


@dataclass(frozen=True, slots=True)
class Job:
    """What ran."""

    name: str
    command: tuple[str, ...]
    world_size: int | None
    num_ranks_read: int
    hosts: tuple[str, ...]
    device: str | None
    backend: str | None
    torch: str | None
    modules: tuple[Module, ...]
    num_steps: int | None = None
    """that the training took; ``None``: it is not known"""
    num_micro_steps: int | None = None
    """batches that a step accumulates before the optimizer steps; ``None``: only a recording tells"""
    recorded_with: tuple[str, ...] = ()
    """words behind ``ddpprof trace`` that record such a run again; empty where it is not known"""

    def trace_command(self, *options: str) -> str:
        """Return the command that records such a run again, with further options."""
        return " ".join(("ddpprof trace", *options, shlex.join(self.recorded_with) or "train.py"))


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Lengths of unions of device work, ns: of one step, or of a whole trace."""

    compute_ns: int
    comm_ns: int
    overlap_ns: int
    exposed_ns: int
    copy_ns: int
    num_comm_kernels: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """One profiled step of one rank."""

    step: int
    duration_ns: int
    compute_ns: int
    comm_ns: int
    overlap_ns: int
    exposed_ns: int
    trailing_ns: int | None
    copy_ns: int
    num_comm_kernels: int
    parts: Breakdown | None
    wrapper: WrapperCost
    torch_times: TorchTimes | None
    idle: Idle | None = None
    """why the accelerator had nothing to do: ``parts.idle_ns`` by cause; ``None`` on CPU"""


@dataclass(frozen=True, slots=True)
class LightStepReport:
    """One step that only the light recorder saw."""

    step: int
    mode: str
    """that of the recorder, or ``"timeline"``"""
    duration_ns: int
    parts: RecordedBreakdown | None


@dataclass(frozen=True, slots=True)
class RankReport:
    rank: int
    host: str | None
    ended: str | None
    whole: DeviceWork | None
    """the whole trace, between the steps too"""
    steps: tuple[StepReport, ...]
    light_steps: tuple[LightStepReport, ...]
    recording_cost: RecordingCost | None
    devices: tuple[DeviceLoad, ...] = ()
    """where it has several: each on its own, medians over steps"""

    @property
    def measured_steps(self) -> tuple[StepReport, ...]:
        """The steps in which the device worked: the others say nothing of a usual step, and count in no mean."""
        return tuple(step for step in self.steps if step.parts is not None)


@dataclass(frozen=True, slots=True)
class SlowedKernel:
    """One kernel under communication against itself alone."""

    kernel: Kernel
    ratio: float | None
    """median of its duration under communication, over that of the same work alone"""
    num_covered: int
    num_alone: int
    covered_ns: int
    """per step and rank"""
    lost_ns: int
    """per step and rank; negative: it was faster"""


@dataclass(frozen=True, slots=True)
class SlowdownReport:
    """How much communication slows the computation beside it. Times are ns per step and rank."""

    reason: str | None
    """why it is not known, where it is not"""
    ratio: float | None
    lost_ns: int | None
    covered_ns: int
    """computation while communication goes on"""
    known_share: float | None
    """of it, the part by kernels that also ran alone: `ratio` and `lost_ns` are of these"""
    knows_input_shapes: bool
    num_steps: int
    """of all ranks together"""
    kernels: tuple[SlowedKernel, ...]
    """most time lost first"""
    num_baseline_steps: int = 0
    """without communication, of all ranks together"""
    control: float | None = None
    """of baseline steps: work that ran alone in both, by how much it took longer beside the measured ones; taken out"""


@dataclass(frozen=True, slots=True)
class ClockReport:
    """The clocks of the ranks, by the lowest one's. Times are nanoseconds since 1970 where the traces say."""

    at_ns: int
    ranks: tuple[RankClock, ...]
    hosts: tuple[HostClock, ...]


@dataclass(frozen=True, slots=True)
class LateGradients:
    """Where a rank that is late in its backward pass falls behind, the largest jump first."""

    rank: int
    gradients: tuple[LateGradient, ...]


@dataclass(frozen=True, slots=True)
class AcrossRanks:
    """What only several ranks together tell."""

    num_matched: int
    """collectives that were recognised on two ranks or more"""
    clock: ClockReport | None
    waiting: tuple[RankWaiting, ...]
    collectives: tuple[CollectiveSummary, ...]
    stragglers: Stragglers | None
    """``None`` where there are too few ranks or steps to tell"""
    late_gradients: tuple[LateGradients, ...]


class BoundBy(StrEnum):
    """What most of a step's communication is."""

    WAITING = "waiting"
    LATENCY = "latency"
    BANDWIDTH = "bandwidth"


class WhatHelps(StrEnum):
    """A change whose effect on a bound step is replayed."""

    DOUBLE_BATCH = "double_batch"
    ACCUMULATION = "accumulation"
    NO_SYNC = "no_sync"
    COMPRESSION = "compression"
    DOUBLE_LINK = "double_link"
    BUCKETS = "buckets"


@dataclass(frozen=True, slots=True)
class WouldHelp:
    """One change, and what the replay says that it gives back per step, or per batch of the recorded size."""

    what: WhatHelps
    predicted: Predicted
    is_noise: bool = False
    """chance may have made it, or the change may cost time"""


@dataclass(frozen=True, slots=True)
class Bound:
    """Why the step is as long as it is, where much of it is exposed communication. Times are ns per step: means."""

    by: BoundBy
    step_ns: int
    exposed_ns: int
    comm_ns: int
    waiting_ns: int | None
    """of the communication: for ranks that come later; ``None`` where the ranks' collectives were not matched"""
    gradient_bytes: int | None
    num_collectives: int
    would_help: tuple[WouldHelp, ...]


@dataclass(frozen=True, slots=True)
class Report:
    format: int
    ddpprof: str
    job: Job
    missing: tuple[str, ...]
    """what the report lacks, and why"""
    ranks: tuple[RankReport, ...]
    buckets: tuple[BucketRow, ...]
    """by the recorder, or as far as traces alone tell"""
    findings: tuple[Finding, ...]
    kernels: tuple[KernelSummary, ...] = ()
    """of the first rank with a trace: those that take most of its time"""
    slowdown: SlowdownReport | None = None
    across: AcrossRanks | None = None
    outside: tuple[OutsideCalls, ...] | None = None
    """collectives beside DDP, per step: medians, of the rank that exposes least"""
    data_parallel: DataParallelReport | None = None
    memory: tuple[RankMemory, ...] = ()
    rpc: tuple[RankRpc, ...] = ()
    """ranks that call others through ``torch.distributed.rpc``"""
    horovod: HorovodSummary | None = None
    """of a Horovod timeline, which tells nothing else"""
    attempts: tuple[AttemptSummary, ...] = ()
    """where torchrun started the job more than once; the rest is of one of them"""
    bound: Bound | None = None
    """what bounds the step; ``None`` where little communication is exposed, or it is not known"""
    usual_steps: tuple[int, ...] = ()
    """numbers of the profiled steps that tables average over; see `measures.usual_steps`"""
    failure: Failure | None = None
    """how the job failed; ``None`` where it did not, as far as is known"""
    own_reduction: OwnReduction | None = None
    """gradients that hooks of the script reduce, without torch's DDP: per step, of the rank that exposes least"""
    times: Mapping[str, str] = field(default_factory=dict)
    """on an accelerator, by field: ``"host"``, when work was launched, or ``"device"``, when it was done"""

    def averaged(self, rank: RankReport) -> tuple[StepReport, ...]:
        """Return the rank's steps that tables average over."""
        return tuple(step for step in rank.measured_steps if not self.usual_steps or step.step in self.usual_steps)
