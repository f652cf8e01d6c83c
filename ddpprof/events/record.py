"""What the recorder wrote for one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    num_bytes: int
    dtype: str | None = None
    """as ``float32``; ``None``, like an empty shape of several bytes: an older ddpprof recorded it"""
    shape: tuple[int, ...] = ()
    is_sparse: bool = False
    """its gradient is expected to be"""


@dataclass(frozen=True, slots=True)
class DdpModule:
    """One ``DistributedDataParallel`` instance, as the recorder found it."""

    name: str
    settings: Mapping[str, object]
    """constructor arguments by torch's names, defaults filled in"""
    comm_hook: str | None
    parameters: tuple[Parameter, ...]
    """in the reducer's order"""
    buckets: tuple[tuple[int, ...], ...]
    """per bucket, the indices of its parameters; the layout in force in the recorded steps"""
    num_buffers: int
    buffer_bytes: int
    num_batch_norms: int
    unused: tuple[str, ...] | None
    """parameters without gradient in every recorded step; ``None`` where it was not observed"""
    graph_is_static: bool | None
    """torch's ``can_set_static_graph``"""


@dataclass(frozen=True, slots=True)
class DataParallelModule:
    """One ``nn.DataParallel`` instance, of a process that trains without DDP."""

    name: str
    device_ids: tuple[int, ...]
    """empty without an accelerator: it then only calls its module"""
    num_parameters: int
    parameter_bytes: int


@dataclass(frozen=True, slots=True)
class Loader:
    """One DataLoader that fed training steps."""

    sampler: str
    dataset_size: int | None
    batch_size: int | None
    num_workers: int
    num_iterations: int
    """how often a pass over it was begun"""
    epochs_set: tuple[int, ...] | None
    """the sampler's epoch at each begin; ``None`` where it has none"""
    shuffles: bool
    num_training_steps: int
    """steps with a synchronised DDP forward in which it was asked for a batch"""
    set_epoch_called: bool = False


@dataclass(frozen=True, slots=True)
class Forward:
    """One ``DistributedDataParallel.forward``, by the host's clock since 1970."""

    module: int
    """index into ``Record.modules``"""
    start_ns: int
    inner_start_ns: int
    """DDP's own work before the module's forward is over"""
    inner_end_ns: int
    end_ns: int
    buffer_sync_ns: int
    rebuild_ns: int
    synchronises: bool
    """``False`` under ``no_sync()``"""


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """One bucket in one step, by the host's clock since 1970."""

    module: int
    index: int
    launched_ns: int | None
    finished_ns: int | None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What one process holds on one accelerator, in bytes."""

    index: int
    allocated_bytes: int
    """in tensors"""
    peak_bytes: int
    """in tensors, at most since the process began"""
    reserved_bytes: int
    """by torch's allocator, tensors and what it keeps for others"""
    is_own: bool = True
    """the process trains on it; else it only holds memory or a context there"""
    uuid: str | None = None
    """the same for all processes, whatever index they see it under"""
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """One process's memory at the end of a step, in bytes."""

    rss_bytes: int | None
    """what of the process is in the host's memory"""
    peak_rss_bytes: int | None
    devices: tuple[DeviceMemory, ...] = ()
    """those on which it trains"""


@dataclass(frozen=True, slots=True)
class RpcCall:
    """One call through ``torch.distributed.rpc``, by the host's clock since 1970. Bytes are those of its tensors."""

    callee: str
    function: str
    kind: str
    """``"sync"`` or ``"async"``"""
    start_ns: int
    end_ns: int | None
    """``None``: not answered within the step"""
    request_bytes: int
    reply_bytes: int | None


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step as the light recorder saw it. Times are nanoseconds since 1970."""

    number: int
    mode: str
    """``"off"`` and ``"without_ddp"``, of which only the length is known, ``"light"``, ``"profiled"``, or
    ``"baseline"``: profiled under ``no_sync``"""
    start_ns: int
    end_ns: int
    data_ns: int | None = None
    """time that the training thread waited for its DataLoader"""
    forwards: tuple[Forward, ...] = ()
    optimizers: tuple[tuple[int, int], ...] = ()
    """start and end of each ``Optimizer.step``"""
    ready_ns: Mapping[int, tuple[int | None, ...]] = field(default_factory=dict)
    """per module, when each parameter's gradient was accumulated, in the reducer's order"""
    buckets: tuple[BucketTimes, ...] = ()
    torch_stats: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """per module, times from torch's ``_get_ddp_logging_data()``: those of the iteration *before* this step's last"""
    memory: Memory | None = None
    rpc: tuple[RpcCall, ...] = ()
    rpc_left_out: int = 0
    """calls beyond those that a step keeps"""


@dataclass(frozen=True, slots=True)
class Record:
    """What the recorder wrote for one rank."""

    rank: int
    world_size: int
    local_rank: int | None
    host: str
    pid: int
    device: str
    backend: str
    torch: str
    modules: tuple[DdpModule, ...]
    loaders: tuple[Loader, ...]
    checkpoints: tuple[str, ...]
    """absolute paths written with ``torch.save``"""
    steps: tuple[RecordedStep, ...]
    profiler_pause_ns: int | None
    """how long training stood still for starting the profiler and writing the trace"""
    ended: str | None
    """``"finished"``, ``"failed: …"`` or ``None`` where the process never got to say"""
    data_parallel: tuple[DataParallelModule, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    """where the process held memory or a context when the record was written last"""
    run_id: str | None = None
    """the same on all ranks of a job"""
