"""What is known of a run, read-only: ``Run > Rank > Trace and Record``.

tables.py    a trace as numpy columns
record.py    what ddpprof recorded beside it: its layout in files, too
netbench.py  what `ddpprof netbench` measured of a network
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ddpprof.model.record import (
    DETAILED_MODES,
    BackwardPass,
    Batch,
    BucketTimes,
    DataParallelModule,
    DdpModule,
    DeviceMemory,
    Forward,
    Loader,
    Memory,
    Parameter,
    ProcessExit,
    Record,
    RecordedStep,
    Replica,
    RpcCall,
    StepMode,
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

__all__ = [
    "DETAILED_MODES",
    "NO_STEP",
    "UNKNOWN",
    "Attempt",
    "BackwardPass",
    "Batch",
    "BucketTimes",
    "CollectiveKind",
    "Collectives",
    "DataParallelModule",
    "DdpModule",
    "DeviceMemory",
    "Forward",
    "HostSpans",
    "Int32Column",
    "Int64Column",
    "Kernel",
    "Loader",
    "Mark",
    "Memory",
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
    "Work",
]


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank: its trace, its record, or both."""

    rank: int
    trace: Trace | None
    record: Record | None

    @property
    def world_size(self) -> int | None:
        """The largest that its trace or its record knows of."""
        known = [part.world_size for part in (self.record, self.trace) if part is not None]
        return max((size for size in known if size is not None), default=None)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of all ranks of a job by torchrun, without traces."""

    number: int
    """0 is the first one that set up DDP"""
    restarts: int | None
    """how often torchrun had restarted the ranks for a failure"""
    created_unix_s: float | None
    world_size: int | None
    records: tuple[Record, ...]
    is_shown: bool
    """`Run.ranks` are those of this attempt"""


class OtherFile(Protocol):
    """A file of another tool that tells of all ranks; what else it tells, a side street knows."""

    @property
    def world_size(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Every rank that could be read, in order, and what could not."""

    name: str
    command: tuple[str, ...]
    world_size: int | None
    ranks: tuple[Rank, ...]
    missing: tuple[str, ...] = ()
    """what should be there and is not, in words for the report"""
    settings: Mapping[str, object] = field(default_factory=dict)
    """the recorder's settings; empty for traces that ddpprof did not record"""
    other_file: OtherFile | None = None
    """instead of ranks"""
    attempts: tuple[Attempt, ...] = ()
    """of a job that torchrun started more than once: all, in order"""
    exits: tuple[ProcessExit, ...] = ()
    """of its processes, as far as those who had started them noted them"""


@dataclass(frozen=True, slots=True)
class TimesTable:
    """Times that were measured elsewhere."""

    varied: str
    """what the sizes are"""
    times_ns: Mapping[str, Mapping[float, tuple[float, ...]]]
    """configuration → size → one time or more"""
