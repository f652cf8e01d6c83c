"""Read-only data of a run: ``Run > Rank > Trace and Record``."""

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
    CollectiveOfSomeRanks,
    DataParallelModule,
    DeviceMemory,
    Forward,
    HostRead,
    Loader,
    Memory,
    OptimizerFacts,
    Record,
    RecordedStep,
    Replica,
    RpcCall,
    StepMode,
    UnaveragedParameters,
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
    """what NCCL logged about its process"""

    @property
    def world_size(self) -> int | None:
        """World size: the largest one in its trace or record."""
        known = [part.world_size for part in (self.record, self.trace) if part is not None]
        return max((size for size in known if size is not None), default=None)

    @property
    def training_steps(self) -> tuple[RecordedStep, ...]:
        """Its record's training steps; empty without a record."""
        return self.record.training_steps if self.record is not None else ()

    @property
    def measured_step_indices(self) -> list[int]:
        """Indices of its trace's completed training steps.

        A step that the record lacks was cut off by the end of the job.
        """
        known = {step.number for step in self.training_steps}
        steps = self.trace.steps if self.trace is not None else ()
        return [index for index, step in enumerate(steps) if not known or step.number in known]

    @property
    def baseline_step_indices(self) -> list[int]:
        """Indices of its trace's steps that were recorded without communication."""
        if self.trace is None or self.record is None:
            return []
        numbers = {step.number for step in self.record.steps if step.mode is StepMode.BASELINE}
        return [index for index, step in enumerate(self.trace.steps) if step.number in numbers]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of all ranks of a job by torchrun, without traces."""

    number: int
    """number of the start; 0 is the first start that set up DDP"""
    restarts: int | None
    """number of times that torchrun had restarted the ranks after a failure"""
    created_unix_s: float | None
    world_size: int | None
    records: tuple[Record, ...]
    is_shown: bool
    """True if `Run.ranks` are from this attempt"""


class OtherFile(Protocol):
    """A file of another tool that covers all ranks; the rest of it is read by a topic."""

    @property
    def world_size(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """All ranks that could be read, in order, and a description of what could not be read."""

    name: str
    command: tuple[str, ...]
    world_size: int | None
    ranks: tuple[Rank, ...]
    missing: tuple[str, ...] = ()
    """what is missing although it should be there, in words for the report"""
    settings: Mapping[str, object] = field(default_factory=dict)
    """the recorder's settings; empty for traces that ddpprof did not record"""
    other_file: OtherFile | None = None
    """file of another tool, used instead of ranks"""
    attempts: tuple[Attempt, ...] = ()
    """all attempts, in order, if torchrun started the job more than once"""
    exits: tuple[ProcessExit, ...] = ()
    """ends of its processes, as far as their parents recorded them"""
    tried: tuple[TriedChange, ...] = ()
    """changes that `ddpprof try` has measured"""
    whole_run: WholeRun | None = None
    """the whole training, not only its recorded steps; ``None`` if no rank left a pulse"""
    link_bits_per_s: int | None = None
    """speed of the link between the hosts that the user states, if the machines do not or something limits it"""

    @property
    def modules(self) -> tuple[DdpModule, ...]:
        """Modules of the first rank that has them; DDP builds the same modules on every rank."""
        return next((rank.record.modules for rank in self.ranks if rank.record and rank.record.modules), ())


@dataclass(frozen=True, slots=True)
class TimesTable:
    """Table of times measured by another tool."""

    varied: str
    """meaning of the sizes"""
    times_ns: Mapping[str, Mapping[float, tuple[float, ...]]]
    """configuration → size → one or more times in ns"""
