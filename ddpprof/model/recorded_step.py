"""A step as the light recorder sees it: forwards, gradients, buckets, optimizers, memory."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from ddpprof.model.int64 import Int64
from ddpprof.model.step_mode import StepMode

TORCH_TIMES = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)
"""names of the times that DDP measures in an iteration, in ``_get_ddp_logging_data()``"""


class Forward(Struct, frozen=True, array_like=True):
    """One ``DistributedDataParallel.forward``, by the host's clock since 1970."""

    module: Int64
    """index into ``Record.modules``"""
    start_ns: Int64
    inner_start_ns: Int64
    """end of DDP's own work before the module's forward"""
    inner_end_ns: Int64
    end_ns: Int64
    buffer_sync_ns: Int64
    rebuild_ns: Int64
    synchronises: bool
    """``False`` under ``no_sync()``"""
    has_gradients: bool = True
    """``False`` under ``no_grad()``, as in an evaluation"""


class BucketTimes(Struct, frozen=True, array_like=True):
    """One bucket in one backward pass, by the host's clock since 1970."""

    index: Int64
    launched_ns: Int64 | None
    finished_ns: Int64 | None


class BackwardPass(Struct, frozen=True, array_like=True):
    """One synchronised backward pass through one DDP module, by the host's clock since 1970."""

    module: Int64
    """index into ``Record.modules``"""
    origin_ns: Int64
    """end of the module's last forward before it"""
    ready_ns: tuple[Int64 | None, ...]
    """time at which each parameter's gradient was accumulated, in the reducer's order; ``None`` if it was not"""
    buckets: tuple[BucketTimes, ...] = ()
    """buckets that were timed"""
    adds_up: bool = False
    """True if the module already had gradients when it began"""
    call: Int64 = 0
    """number of the call of ``backward`` in the step; a call may go through several modules. 0 if unknown"""

    @property
    def last_ready_ns(self) -> int | None:
        """Time at which the last gradient was accumulated."""
        return max((ns for ns in self.ready_ns if ns is not None), default=None)


class DeviceMemory(Struct, frozen=True, array_like=True):
    """Memory that one process holds on one accelerator, in bytes."""

    index: Int64
    allocated_bytes: Int64
    """bytes in tensors"""
    peak_bytes: Int64
    """peak bytes in tensors since the process began"""
    reserved_bytes: Int64
    """bytes held by torch's allocator, in tensors or in its cache"""
    is_own: bool = True
    """True if the process trains on it; otherwise it only holds memory or a context there"""
    uuid: str | None = None
    """identifier that is the same in all processes, whatever index they use for it"""
    total_bytes: Int64 | None = None


class Memory(Struct, frozen=True):
    """One process's memory at the end of a step, in bytes."""

    rss_bytes: Int64 | None = field(name="rss", default=None)
    """process memory resident in the host's RAM, bytes"""
    peak_rss_bytes: Int64 | None = field(name="peak_rss", default=None)
    devices: tuple[DeviceMemory, ...] = ()
    """devices on which it trains"""


class RpcCall(Struct, frozen=True, array_like=True):
    """One call through ``torch.distributed.rpc``, by the host's clock since 1970. Bytes are those of its tensors."""

    callee: str
    function: str
    kind: str
    """``"sync"`` or ``"async"``"""
    start_ns: Int64
    end_ns: Int64 | None
    """``None`` if it was not answered within the step"""
    request_bytes: Int64
    reply_bytes: Int64 | None


class RecordedStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step as seen by the light recorder. Times are nanoseconds since 1970."""

    number: Int64
    mode: StepMode
    start_ns: Int64
    data_ns: Int64 | None = None
    """time that the training thread waited for its DataLoader"""
    forwards: tuple[Forward, ...] = ()
    began_evaluation: bool = False
    """whether a pass over a DataLoader began in it without gradients, or with all DDP modules in evaluation mode"""
    optimizers: tuple[tuple[Int64, Int64], ...] = ()
    """start and end of each ``Optimizer.step``; with a closure, of the parts before, between and after its calls"""
    passes: tuple[BackwardPass, ...] = ()
    """synchronised passes, in ascending order of origin; a module may have several in a step"""
    torch_stats: Mapping[Int64, Mapping[str, Int64]] = field(default_factory=dict)
    """times per module from torch's ``_get_ddp_logging_data()``, of the iteration *before* the last one of this step"""
    memory: Memory | None = None
    rpc: tuple[RpcCall, ...] = ()
    rpc_left_out: Int64 = 0
    """number of calls beyond those kept per step"""
    random_states: Mapping[str, Int64] = field(default_factory=dict)
    """digests of the states of torch's random number generators when the step began, by device type; without that of
    the CPU if a DataLoader has just drawn from it at the beginning of a pass
    """
    end_ns: Int64
    """the last field, because it is set after the rest is encoded"""

    @property
    def has_evaluation(self) -> bool:
        """Whether the training ran an evaluation in the step, through DDP or without it."""
        return self.began_evaluation or not all(one.has_gradients for one in self.forwards)
