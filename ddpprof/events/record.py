"""What the recorder wrote for one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


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
    """parameters without gradient in every backward pass that was looked at; ``None`` where none was"""
    graph_is_static: bool | None
    """torch's ``can_set_static_graph``"""
    num_searched_passes: int = 0
    """backward passes that were looked at for unused parameters"""
    num_lacking_passes: int | None = None
    """passes of these that left some parameter without gradient; ``None`` where the recording does not say"""


@dataclass(frozen=True, slots=True)
class DataParallelModule:
    """One ``nn.DataParallel`` instance, of a process that trains without DDP."""

    name: str
    device_ids: tuple[int, ...]
    """empty without an accelerator: it then only calls its module"""
    num_parameters: int
    parameter_bytes: int


class Batch(NamedTuple):
    """One batch, as a DataLoader yielded it."""

    iteration: int
    """the number of the pass over the loader, from 1"""
    place: int
    """in the pass, from 1"""
    samples: tuple[int, ...]
    """a digest of each of the first samples: equal where what was read of them is equal"""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended, as the one saw it that had started it."""

    exit_code: int
    """negative: the signal that ended it"""
    host: str | None = None
    pid: int | None = None
    rank: int | None = None
    unix_ns: int | None = None
    is_job: bool = False
    """it is the job's first process"""
    interrupted: bool = False
    """the user asked it to end"""


@dataclass(frozen=True, slots=True)
class Loader:
    """One DataLoader from which batches were fetched."""

    sampler: str
    """the name of the class that draws the indices"""
    dataset_size: int | None
    batch_size: int | None
    num_workers: int
    num_iterations: int
    """how often a pass over it was begun"""
    epochs_set: tuple[int, ...] | None
    """a DistributedSampler's epoch: that of each pass which went to its end, and of the last one; else ``None``"""
    shuffles: bool
    set_epoch_called: bool = False
    num_batches: int | None = None
    """how many were fetched; ``None``, as all that follows: an older ddpprof recorded it"""
    num_fed: int | None = None
    """batches which a DDP forward with gradients followed, before the next one of this loader"""
    num_passed_on: int | None = None
    """recorded forwards with gradients whose largest input is as large as a tensor of a recent batch"""
    waited_ns: int | None = None
    """how long the training thread waited for it, in the recorded steps"""
    persistent_workers: bool = False
    batches: tuple[Batch, ...] = ()
    """those of the recorded steps whose samples could be read"""

    @property
    def is_iterable(self) -> bool:
        """Whether its data set is an ``IterableDataset``, for which torch has a stand-in for a sampler."""
        return self.sampler == "_InfiniteConstantSampler"

    @property
    def feeds_training(self) -> bool:
        """Whether batches of it are trained on; an evaluation's meet no forward with gradients."""
        return bool(self.num_fed) and 2 * (self.num_fed or 0) >= (self.num_batches or 0)


@dataclass(frozen=True, slots=True)
class Replica:
    """Some values of one rank's copy of a model: the same places in it on every rank."""

    module: int
    """index into ``Record.modules``"""
    steps: tuple[int, int]
    """before which they were read"""
    before: tuple[float, ...]
    after: tuple[float, ...]
    resolution: float
    """of the coarsest type among them: the least number that makes a difference beside 1"""
    num_unreduced_passes: int
    """backward passes of the recorded steps that no forward preceded: their gradients stay on this rank"""


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
    has_gradients: bool = True
    """``False`` under ``no_grad()``, as in an evaluation"""


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """One bucket in one backward pass, by the host's clock since 1970."""

    index: int
    launched_ns: int | None
    finished_ns: int | None


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """One synchronised backward pass through one DDP module, by the host's clock since 1970."""

    module: int
    """index into ``Record.modules``"""
    origin_ns: int
    """end of the module's last forward before it"""
    ready_ns: tuple[int | None, ...]
    """when each parameter's gradient was accumulated, in the reducer's order; ``None``: it was not"""
    buckets: tuple[BucketTimes, ...] = ()
    """those that were timed"""
    adds_up: bool = False
    """the module had gradients already when it began"""

    @property
    def last_ready_ns(self) -> int | None:
        """When the last gradient was accumulated."""
        return max((ns for ns in self.ready_ns if ns is not None), default=None)


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
    """``"off"``, ``"without_ddp"`` and ``"cut"``, of which only the length is known, ``"light"``, ``"profiled"``, or
    ``"baseline"``: profiled under ``no_sync``; ``"cut"``: it did not end for long, and the trace has only its begin"""
    start_ns: int
    end_ns: int
    data_ns: int | None = None
    """time that the training thread waited for its DataLoader"""
    forwards: tuple[Forward, ...] = ()
    optimizers: tuple[tuple[int, int], ...] = ()
    """start and end of each ``Optimizer.step``; of one with a closure, the parts before, between and after its calls"""
    passes: tuple[BackwardPass, ...] = ()
    """synchronised ones, ascending by origin; a module may have several in a step"""
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
    """``"finished"``, ``"interrupted"``, ``"failed: …"`` or ``None`` where the process never got to say"""
    ended_unix_ns: int | None = None
    num_steps: int | None = None
    """that the rank had finished when it ended, or when it was last heard of"""
    last_step_unix_ns: int | None = None
    """when the last of them ended; only of a rank that did not say how it ended"""
    group_size: int | None = None
    """ranks that average their gradients together"""
    framework: str | None = None
    """whose function made the DDP module: ``"transformers"``, ``"lightning"``, ``"fabric"``, ``"accelerate"``"""
    num_cores: int | None = None
    """that the process may run on"""
    num_threads: int | None = None
    """``torch.get_num_threads()``"""
    data_parallel: tuple[DataParallelModule, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    """where the process held memory or a context when the record was written last"""
    replicas: tuple[Replica, ...] = ()
    """of modules whose parameters could be read, in a recording that came to its end"""
    run_id: str | None = None
    """the same on all ranks of a job"""
    profiles: bool = True
    """the rank was to be profiled: in a large job not all are"""
    no_trace: str | None = None
    """why it has no trace, or one that ends early"""
