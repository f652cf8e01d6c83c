"""The tables of one rank's trace, as read-only NumPy columns. Times are in int64 nanoseconds.

All spans are half-open: ``start_ns <= t < end_ns``. Times are on the trace file's own clock; add ``Trace.epoch_ns`` to
get nanoseconds since 1970. Rows of every table are sorted by ``start_ns``. The ``step`` of a row is an index into
``Trace.steps``, or ``NO_STEP``. On an accelerator, it is the step during which the host *launched* the row; on CPU, the
step that contains the start of the row.

`PluginView` has the steps and collectives that TensorBoard's profiler plugin (torch-tb-profiler) should show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import EnumType, IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class InterruptibleEnum(EnumType):
    """Metaclass for enumerations. No Python code runs when NumPy looks up ``__array_ufunc__`` on their members.

    Before Python 3.12, `EnumType` has a ``__getattr__`` written in Python. If a signal handler raises an exception in
    this method, NumPy treats the exception as a missing attribute and discards it.
    """

    __getattr__ = type.__getattribute__


Int64Column = NDArray[np.int64]
Int32Column = NDArray[np.int32]

NO_STEP = -1
"""value of ``step`` in rows that belong to no recorded step"""

HOOK_NODE = "AccumulateGrad"
"""suffix in the name of the autograd node that runs the hooks of a parameter's gradient"""

TableT = TypeVar("TableT", bound="DataclassInstance")

UNKNOWN = -1
"""value that stands for a missing size or identifier in a column; results contain ``None`` instead"""


class Phase(IntEnum, metaclass=InterruptibleEnum):
    """The phase of the step in which a kernel or op was launched.

    In ``FINALIZE``, after the last backward node, DDP's reducer waits for the buckets and copies them into ``.grad``.
    """

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    FINALIZE = 3
    OPTIMIZER = 4


class Mark(IntEnum, metaclass=InterruptibleEnum):
    """Meaning of a host span. ``load/classify.py`` maps span names to marks."""

    FORWARD = 0
    """``DistributedDataParallel.forward``"""
    BACKWARD = 1
    """``autograd::engine::evaluate_function: …``"""
    OPTIMIZER = 2
    """``Optimizer.step#…``"""
    DATA = 3
    """``enumerate(DataLoader)#…``: the training thread waits for a batch"""
    BUCKET_COPY_IN = 4
    """reducer: a gradient is scaled and copied into its bucket"""
    BUCKET_COPY_OUT = 5
    """reducer: a bucket is copied back into ``.grad``"""
    UNUSED_SEARCH = 6
    """reducer: the autograd graph is searched for unused parameters"""
    COLLECTIVE_CALL = 7
    """``c10d::…`` op: the host passes a collective to the backend"""
    SYNC_BATCH_NORM = 8
    """forward pass of ``SyncBatchNorm``'s autograd function, which gathers statistics from all ranks"""
    DATA_PARALLEL = 9
    """forward pass of ``nn.DataParallel``, which uses several devices from one process"""
    REPLICATE = 10
    """``Broadcast``: DataParallel copies parameters to its devices"""
    SCATTER = 11
    """``Scatter``: DataParallel splits a batch, or the gradients of its output, across its devices"""
    GATHER = 12
    """``Gather``: DataParallel gathers the output on one device"""
    REDUCE_GRADIENTS = 13
    """``ReduceAddCoalesced``: DataParallel sums the gradients of its devices"""
    SHARDED = 14
    """FSDP, which reduces shards instead of buckets"""
    FLATTEN = 15
    """several tensors are flattened into one tensor, or one tensor is split into several; Apex does this with gradients
    before and after an all-reduce
    """
    DEVICE_WAIT = 16
    """``cudaStreamSynchronize`` or similar: the host waits until the accelerator has finished its work"""
    DEVICE_MEMORY = 17
    """``cudaMalloc``, ``cudaFree`` or similar: the host allocates or frees memory of the accelerator"""


class CollectiveKind(IntEnum, metaclass=InterruptibleEnum):
    """Kind of collective, if the trace names it."""

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
    """Columns of equal length."""

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, column.name)) for column in fields(self)}
        assert len(lengths) == 1, f"{type(self).__name__}: columns of lengths {sorted(lengths)}"
        for column in fields(self):
            getattr(self, column.name).flags.writeable = False

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


@dataclass(frozen=True, slots=True)
class Kernel:
    """Identity of a kernel or, on CPU, of an op. Kernels with equal identities do the same work."""

    name: str
    launch_shape: str | None = None
    """grid and block dimensions of the launch; ``None`` on CPU, or if not in the trace"""
    input_shapes: str | None = None
    """input shapes of the op that launched the kernel, in the format of the trace; ``None`` if not recorded"""
    position: int | None = None
    """on CPU: position of the op among the ops with the same name in its step; ``None`` on accelerators"""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The process group of a collective, with the details that the trace contains."""

    name: str | None = None
    size: int | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Work(_Table):
    """Table of kernels, of copies or, on CPU, of ops.

    On CPU the rows are the outermost ``cpu_op`` spans of the training threads, without ``c10d::*``. An op that contains
    a ``c10d::*`` op is split into the pieces before and after it, so rows of one thread never overlap.
    """

    start_ns: Int64Column
    end_ns: Int64Column
    name: Int32Column
    """index into ``Trace.names``"""
    phase: NDArray[np.int8]
    """value of `Phase`"""
    step: Int32Column
    lane: Int64Column
    """stream of an accelerator, or thread of the host"""
    kernel: Int32Column
    """index into ``Trace.kernels``; `UNKNOWN` for copies, which are not listed there"""
    launched_ns: Int64Column
    """start of the host call that launched the work, or `UNKNOWN`; on CPU, the start of the op"""
    device: Int32Column
    """accelerator on which the work ran, or `UNKNOWN`"""


@dataclass(frozen=True, slots=True)
class Collectives(_Table):
    """Table of collectives: one row per NCCL/RCCL/… kernel, or per ``gloo:``/``mpi:``/``ucc:`` span."""

    start_ns: Int64Column
    end_ns: Int64Column
    name: Int32Column
    phase: NDArray[np.int8]
    step: Int32Column
    lane: Int64Column
    kind: NDArray[np.int8]
    """value of `CollectiveKind`"""
    launched_ns: Int64Column
    """start of the host call that launched the collective (kernel launch or ``c10d::*`` op), or `UNKNOWN`"""
    num_bytes: Int64Column
    """message size as defined by nccl-tests (the larger of this rank's input and output), or `UNKNOWN`"""
    group: Int32Column
    """index into ``Trace.groups``, or `UNKNOWN`"""
    sequence: Int64Column
    """sequence number within the process group, or `UNKNOWN`"""
    device: Int32Column
    """accelerator on which the collective ran, or `UNKNOWN`"""

    @property
    def asked_ns(self) -> Int64Column:
        """Time at which the host launched each collective or, if unknown, the start of the collective."""
        return np.where(self.launched_ns == UNKNOWN, self.start_ns, self.launched_ns)


@dataclass(frozen=True, slots=True)
class HostSpans(_Table):
    """Table of host spans with a known meaning."""

    start_ns: Int64Column
    end_ns: Int64Column
    mark: NDArray[np.int8]
    """value of `Mark`"""
    name: Int32Column
    step: Int32Column
    thread: Int64Column


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of one rank.

    ``number`` is taken from ``ProfilerStep#number``. If steps are delimited by DDP forward passes, it counts from 0.
    """

    number: int
    start_ns: int
    end_ns: int
    cycle: int = 0
    """index of the profiler cycle that contains the step; the trace has no data for the time between cycles"""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Trace:
    """The profiler trace of one rank, as tables. The traces of successive profiler cycles are joined into one."""

    device: str
    """``"cpu"`` if the trace has no accelerator work, else ``"gpu"``"""
    backend: str | None
    rank: int | None
    world_size: int | None
    host: str | None
    epoch_ns: int | None
    """offset to add to the tables' times to get nanoseconds since 1970; ``None`` if unknown"""
    names: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    groups: tuple[ProcessGroup, ...]
    steps: tuple[Step, ...]
    compute: Work
    copies: Work
    collectives: Collectives
    host_spans: HostSpans
    files: tuple[str, ...] = ()
    """paths of the trace files, in time order"""
    steps_are_counted: bool = False
    """True if the trace has no ``ProfilerStep#k``; step numbers then count DDP forward passes"""
    has_cuda: bool = True
    """False if the host called functions of an accelerator, but none of CUDA or HIP"""
    notes: tuple[str, ...] = ()
    """messages for the report about missing or repaired data"""


def rows_of(table: TableT, rows: NDArray[Any] | slice) -> TableT:
    """Return the selected rows of a dataclass of columns. `rows`: indices, a mask, or a slice."""
    return type(table)(*(getattr(table, column.name)[rows] for column in fields(table)))


def moved(table: TableT, shift_ns: int) -> TableT:
    """Return a table of spans with all times shifted by `shift_ns`. Unknown launch times remain unknown."""
    times = {name: getattr(table, name) + shift_ns for name in ("start_ns", "end_ns")}
    launched_ns = getattr(table, "launched_ns", None)
    if launched_ns is not None:
        times["launched_ns"] = np.where(launched_ns == UNKNOWN, UNKNOWN, launched_ns + shift_ns)
    return replace(table, **times)


@dataclass(frozen=True, slots=True)
class PluginCollective:
    """A collective with a name that the plugin recognizes."""

    name: str
    """``nccl:all_reduce``, …; the plugin assumes that the i-th collective of each rank is the same collective"""
    start_ns: int
    end_ns: int
    num_bytes: int | None


@dataclass(frozen=True, slots=True)
class PluginView:
    """The steps and collectives of one rank that the plugin should count."""

    device: str
    """``"cpu"`` or ``"gpu"``"""
    epoch_ns: int | None
    """offset to add to the times in this class to get nanoseconds since 1970"""
    steps: tuple[Step, ...]
    collectives: Mapping[tuple[int, int], PluginCollective]
    """start time, and index among collectives with the same start time → collective; contains only collectives that all
    ranks have
    """
