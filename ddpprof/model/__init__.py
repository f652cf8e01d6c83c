"""The data of a run, read-only: a `Run` has ranks, and each `Rank` has a `Trace`, a `Record` or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ddpprof.model.ddp_module import DdpModule, Parameter
from ddpprof.model.json_files import ProcessExit, TriedChange
from ddpprof.model.links import NcclChoices
from ddpprof.model.record import (
    DETAILED_MODES,
    BackwardPass,
    Batch,
    BucketTimes,
    CodeSamples,
    CollectiveOfSomeRanks,
    DataParallelModule,
    DeviceMemory,
    Forward,
    HostRead,
    Loader,
    Memory,
    MemoryPeak,
    OptimizerFacts,
    Record,
    RecordedStep,
    Replica,
    RpcCall,
    StepMode,
    UnaveragedParameters,
    UntrainedParameters,
    UnusualCollective,
)
from ddpprof.model.tables import (
    NO_STEP,
    UNKNOWN,
    CollectiveKind,
    Collectives,
    HostSpans,
    Int32Column,
    Int64Column,
    Kernel,
    Mark,
    Phase,
    ProcessGroup,
    Step,
    Trace,
    Work,
)
from ddpprof.model.whole_run import WholeRun

__all__ = [
    "DETAILED_MODES",
    "NO_STEP",
    "UNKNOWN",
    "Attempt",
    "BackwardPass",
    "Batch",
    "BucketTimes",
    "CodeSamples",
    "CollectiveKind",
    "CollectiveOfSomeRanks",
    "Collectives",
    "DataParallelModule",
    "DdpModule",
    "DeviceMemory",
    "Forward",
    "HostRead",
    "HostSpans",
    "Int32Column",
    "Int64Column",
    "Kernel",
    "Loader",
    "Mark",
    "Memory",
    "MemoryPeak",
    "OptimizerFacts",
    "OtherFile",
    "Parameter",
    "Phase",
    "ProcessExit",
    "ProcessGroup",
    "Rank",
    "Record",
    "RecordedStep",
    "Replica",
    "RpcCall",
    "Run",
    "Step",
    "StepMode",
    "TimesTable",
    "Trace",
    "UnaveragedParameters",
    "UntrainedParameters",
    "UnusualCollective",
    "Work",
]


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank: its trace, its record, or both."""

    rank: int
    trace: Trace | None
    record: Record | None
    nccl: NcclChoices | None = None
    """what NCCL logged in this rank's process"""

    @property
    def world_size(self) -> int | None:
        """World size; if the trace and the record differ, the larger of the two values."""
        known = [part.world_size for part in (self.record, self.trace) if part is not None]
        return max((size for size in known if size is not None), default=None)

    @property
    def training_steps(self) -> tuple[RecordedStep, ...]:
        """Training steps of the record; empty if there is no record."""
        return self.record.training_steps if self.record is not None else ()

    @property
    def measured_step_indices(self) -> list[int]:
        """Indices of the completed training steps in ``trace.steps``.

        A step that the record lacks was interrupted by the end of the job.
        """
        known = {step.number for step in self.training_steps}
        steps = self.trace.steps if self.trace is not None else ()
        return [index for index, step in enumerate(steps) if not known or step.number in known]

    @property
    def baseline_step_indices(self) -> list[int]:
        """Indices in ``trace.steps`` of the steps that were recorded without communication."""
        if self.trace is None or self.record is None:
            return []
        numbers = {step.number for step in self.record.steps if step.mode is StepMode.BASELINE}
        return [index for index, step in enumerate(self.trace.steps) if step.number in numbers]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job: one launch of all its ranks by torchrun. An `Attempt` contains no traces."""

    number: int
    """number of the attempt; the first attempt that constructed a DDP module has number 0"""
    restarts: int | None
    """number of times that torchrun had restarted the ranks before this attempt"""
    created_unix_s: float | None
    world_size: int | None
    records: tuple[Record, ...]
    is_shown: bool
    """True if `Run.ranks` are from this attempt"""


class OtherFile(Protocol):
    """A file of another tool that covers all ranks, such as `HorovodTimeline`."""

    @property
    def world_size(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """All ranks that could be read, in ascending order, and messages about missing data."""

    name: str
    command: tuple[str, ...]
    world_size: int | None
    ranks: tuple[Rank, ...]
    missing: tuple[str, ...] = ()
    """messages for the report about data that is missing or cannot be read"""
    settings: Mapping[str, object] = field(default_factory=dict)
    """the recorder's settings; empty for traces that ddpprof did not record"""
    other_file: OtherFile | None = None
    """file of another tool, if this run was read from one; the run then has no ranks"""
    attempts: tuple[Attempt, ...] = ()
    """all attempts, in order, if torchrun started the job more than once"""
    exits: tuple[ProcessExit, ...] = ()
    """exits of the job's processes that were recorded by their parents"""
    tried: tuple[TriedChange, ...] = ()
    """changes that `ddpprof try` has measured"""
    whole_run: WholeRun | None = None
    """summary of the whole training, not just of the recorded steps; ``None`` if no rank wrote a pulse file"""
    link_bits_per_s: int | None = None
    """speed of the link between the hosts, as given by the user; takes precedence over speeds found in the records"""
    is_of_torchrun: bool = False
    """True if torchrun started the ranks"""

    @property
    def modules(self) -> tuple[DdpModule, ...]:
        """DDP modules of the first rank that recorded them; they are the same on every rank."""
        return next((rank.record.modules for rank in self.ranks if rank.record and rank.record.modules), ())


@dataclass(frozen=True, slots=True)
class TimesTable:
    """Times measured by another tool."""

    varied: str
    """name of the quantity that was varied, such as the number of processes"""
    times_ns: Mapping[str, Mapping[float, tuple[float, ...]]]
    """configuration → value of the varied quantity → one or more measured times, in ns"""
