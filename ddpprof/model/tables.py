"""The tables of a run: ``Run > Rank > Step``, read-only numpy columns, int64 nanoseconds.

All spans are half-open: ``start_ns <= t < end_ns``. Times are the trace file's own clock; add ``Rank.epoch_ns`` to get
nanoseconds since 1970. Rows of every table are sorted by ``start_ns``. A row's ``step`` is an index into ``Rank.steps``
or ``NO_STEP``; on an accelerator it is the step whose host span holds the row's *launch*, on CPU the one that holds its
start.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Int64Column = NDArray[np.int64]
Int32Column = NDArray[np.int32]

NO_STEP = -1
"""``step`` of a row that belongs to no recorded step."""

UNKNOWN = -1
"""In a column of sizes or identifiers: the trace does not say. Measures turn it into ``None``."""


class Phase(IntEnum):
    """What launched a kernel or op.

    ``FINALIZE`` is DDP's reducer after the last backward node: waiting for buckets and copying them into ``.grad``.
    """

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    FINALIZE = 3
    OPTIMIZER = 4


class Mark(IntEnum):
    """What a host span stands for. See ``load/kineto/classify.py`` for the names that map to each."""

    FORWARD = 0
    """``DistributedDataParallel.forward``"""
    BACKWARD = 1
    """``autograd::engine::evaluate_function: …``"""
    OPTIMIZER = 2
    """``Optimizer.step#…``"""
    DATA = 3
    """``enumerate(DataLoader)#…``: the training thread waits for a batch"""
    BUCKET_COPY_IN = 4
    """reducer: gradient scaled and copied into its bucket"""
    BUCKET_COPY_OUT = 5
    """reducer: bucket copied back into ``.grad``"""
    UNUSED_SEARCH = 6
    """reducer: search of the autograd graph for unused parameters"""
    COLLECTIVE_CALL = 7
    """``c10d::…`` op: the host hands a collective to the backend"""
    SYNC_BATCH_NORM = 8
    """``SyncBatchNorm``: the forward of the autograd function, which gathers statistics"""
    DATA_PARALLEL = 9
    """``DataParallel.forward``, of one process with several devices"""
    REPLICATE = 10
    """``Broadcast``: DataParallel copies parameters to its devices"""
    SCATTER = 11
    """``Scatter``: DataParallel divides a batch among its devices; in the backward pass the gradients of its output"""
    GATHER = 12
    """``Gather``: DataParallel brings the output to one device"""
    REDUCE_GRADIENTS = 13
    """``ReduceAddCoalesced``: DataParallel adds up the gradients of its devices"""
    SHARDED = 14
    """FSDP, which reduces shards instead of buckets"""
    FLATTEN = 15
    """many tensors are made one, or one many: what Apex does with gradients before and after their all-reduce"""


class CollectiveKind(IntEnum):
    """The collective, as far as the trace names it."""

    OTHER = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    REDUCE = 5
    ALL_TO_ALL = 6
    SEND_RECV = 7
    BARRIER = 8
    GATHER = 9
    SCATTER = 10


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns of one length."""

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, column.name)) for column in fields(self)}
        assert len(lengths) == 1, f"{type(self).__name__}: columns of lengths {sorted(lengths)}"
        for column in fields(self):
            getattr(self, column.name).flags.writeable = False

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


@dataclass(frozen=True, slots=True)
class Kernel:
    """What makes two kernels, or two ops of the CPU, the same work."""

    name: str
    launch_shape: str | None = None
    """grid and block; ``None`` on CPU and where the trace does not say"""
    input_shapes: str | None = None
    """those of the op that launched it, as the trace writes them; ``None`` where they were not recorded"""
    position: int | None = None
    """on CPU, where an op has no launch shape: it is the n-th of its name in the step"""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The process group of a collective, as far as its arguments say."""

    name: str | None = None
    size: int | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Work(_Table):
    """Kernels, copies or (on CPU) ops: n rows each.

    On CPU the rows are the outermost ``cpu_op`` spans of the training threads, less ``c10d::*``: an op that holds a
    ``c10d::*`` op stands as the two or more pieces that are left of it, so rows of one thread never overlap.
    """

    start_ns: Int64Column
    end_ns: Int64Column
    name: Int32Column
    """index into ``Rank.names``"""
    phase: NDArray[np.int8]
    """`Phase`"""
    step: Int32Column
    lane: Int64Column
    """stream of an accelerator, thread of the CPU"""
    kernel: Int32Column
    """index into ``Trace.kernels``, or `UNKNOWN`: copies have no identity"""
    launched_ns: Int64Column
    """start of the host's call that queued it, or `UNKNOWN`: on CPU an op is its own launch"""
    device: Int32Column
    """accelerator on which it ran, or `UNKNOWN`"""


@dataclass(frozen=True, slots=True)
class Collectives(_Table):
    """Communication: one row per NCCL/RCCL/… kernel, or per ``gloo:``/``mpi:``/``ucc:`` span."""

    start_ns: Int64Column
    end_ns: Int64Column
    name: Int32Column
    phase: NDArray[np.int8]
    step: Int32Column
    lane: Int64Column
    kind: NDArray[np.int8]
    """`CollectiveKind`"""
    launched_ns: Int64Column
    """start of the host's call that queued it (launch of the kernel, ``c10d::*`` op), or `UNKNOWN`"""
    num_bytes: Int64Column
    """message size as nccl-tests counts it, the larger of this rank's input and output, or `UNKNOWN`"""
    group: Int32Column
    """index into ``Trace.groups``, or `UNKNOWN`"""
    sequence: Int64Column
    """sequence number within the group, or `UNKNOWN`"""
    device: Int32Column
    """accelerator on which it ran, or `UNKNOWN`"""

    @property
    def asked_ns(self) -> Int64Column:
        """Time at which the host asked for each collective; where the trace does not say, the collective's start."""
        return np.where(self.launched_ns == UNKNOWN, self.start_ns, self.launched_ns)


@dataclass(frozen=True, slots=True)
class HostSpans(_Table):
    """What the host says that it is doing."""

    start_ns: Int64Column
    end_ns: Int64Column
    mark: NDArray[np.int8]
    """`Mark`"""
    name: Int32Column
    step: Int32Column
    thread: Int64Column


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of one rank.

    ``number`` is that of ``ProfilerStep#number``, or counts from 0 where DDP forwards delimit the steps.
    """

    number: int
    start_ns: int
    end_ns: int
    cycle: int = 0
    """which of the profiler's windows it lies in: each wrote a file of its own, and between them nothing is known"""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's profiler trace as tables. Several traces of one rank, one after the other, are one `Trace`."""

    device: str
    """``"cpu"`` where the trace holds no accelerator work, else ``"gpu"``"""
    backend: str | None
    rank: int | None
    world_size: int | None
    host: str | None
    epoch_ns: int | None
    """what to add to the tables' times to get nanoseconds since 1970, where the trace says"""
    names: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    groups: tuple[ProcessGroup, ...]
    steps: tuple[Step, ...]
    compute: Work
    copies: Work
    collectives: Collectives
    host_spans: HostSpans
    files: tuple[str, ...] = ()
    """where it was read, in order of time"""
    steps_are_counted: bool = False
    """the trace has no ``ProfilerStep#k``: the steps' numbers count its DDP forwards"""
    notes: tuple[str, ...] = ()
    """what is missing or was mended, in words for the report"""
