"""What a report is: the measures of a run as one tree.

The JSON report is this tree, field by field; its schema is ``render/report.schema.json``. ``None`` is what this run
cannot tell. Times are ns, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpprof.events import DataParallelModule, Kernel
from ddpprof.findings import Finding
from ddpprof.measures.arrivals import RankWaiting
from ddpprof.measures.attempts import AttemptSummary
from ddpprof.measures.breakdown import Breakdown
from ddpprof.measures.bucket_table import BucketRow
from ddpprof.measures.clock import HostClock, RankClock
from ddpprof.measures.collective_table import CollectiveSummary
from ddpprof.measures.cost import RecordingCost
from ddpprof.measures.data_parallel import DataParallelStep
from ddpprof.measures.devices import DeviceLoad
from ddpprof.measures.horovod import HorovodSummary
from ddpprof.measures.idle import Idle
from ddpprof.measures.kernels import KernelSummary
from ddpprof.measures.late_gradients import LateGradient
from ddpprof.measures.memory import RankMemory
from ddpprof.measures.outside import OutsideCalls
from ddpprof.measures.own_reduction import OwnReduction
from ddpprof.measures.recorded import RecordedBreakdown
from ddpprof.measures.rpc import RankRpc
from ddpprof.measures.stragglers import Stragglers
from ddpprof.measures.torch_times import TorchTimes
from ddpprof.measures.wrapper import WrapperCost

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
        """Those in which the device worked: the others say nothing of a usual step, and count in no median."""
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


@dataclass(frozen=True, slots=True)
class DataParallelReport:
    """What ``nn.DataParallel`` does in one process. Times are ns per step: medians."""

    rank: int
    modules: tuple[DataParallelModule, ...]
    """empty where ddpprof did not record"""
    step: DataParallelStep | None


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
    own_reduction: OwnReduction | None = None
    """gradients that hooks of the script reduce, without torch's DDP: per step, of the rank that exposes least"""
