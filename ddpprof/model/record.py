"""The record of one rank: what the recorder writes, the loader reads and measures take. Its layout stands here alone.

    rank-N.facts.json     `Record`, without its steps, beside the format's number
    rank-N.steps.jsonl    one `RecordedStep` per line

Structs that come in large numbers are arrays in the files, their fields in the order in which they stand here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

Int64 = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
"""fits into a column of int64, as does the sum of two"""


class StepMode(StrEnum):
    """Names what the recorder did in a step."""

    SKIP = "skip"
    OFF = "off"
    LIGHT = "light"
    WARMUP = "warmup"
    PROFILED = "profiled"
    BASELINE = "baseline"
    """profiled, without gradient communication"""
    ALONE = "alone"
    """like `LIGHT`, without gradient communication"""
    WITHOUT_DDP = "without_ddp"
    """like `OFF`, while DDP does nothing but call its module"""
    CUT = "cut"
    """a profiled step that did not end for long: the profiler has only its beginning"""
    DONE = "done"


DETAILED_MODES = (StepMode.LIGHT, StepMode.PROFILED, StepMode.BASELINE, StepMode.ALONE)
"""modes in which the inside of a step is noted; of other steps only the length is known"""


class Parameter(Struct, frozen=True, array_like=True):
    name: str
    num_bytes: Int64
    dtype: str | None = None
    """as ``float32``; ``None``, like an empty shape of several bytes: an older ddpprof recorded it"""
    shape: tuple[Int64, ...] = ()
    is_sparse: bool = False
    """its gradient is expected to be"""


class DdpModule(Struct, frozen=True):
    """One ``DistributedDataParallel`` instance, as the recorder found it."""

    name: str
    settings: Mapping[str, object]
    """constructor arguments by torch's names, defaults filled in"""
    comm_hook: str | None
    parameters: tuple[Parameter, ...]
    """in the reducer's order"""
    buckets: tuple[tuple[Int64, ...], ...]
    """per bucket, the indices of its parameters; the layout in force in the recorded steps"""
    num_buffers: Int64
    buffer_bytes: Int64
    num_batch_norms: Int64
    unused: tuple[str, ...] | None = None
    """parameters without gradient in every backward pass that was looked at; ``None`` where none was"""
    graph_is_static: bool | None = None
    """torch's ``can_set_static_graph``"""
    num_searched_passes: Int64 = 0
    """backward passes that were looked at for unused parameters"""
    num_lacking_passes: Int64 | None = None
    """passes of these that left some parameter without gradient; ``None`` where the recording does not say"""


class DataParallelModule(Struct, frozen=True):
    """One ``nn.DataParallel`` instance, of a process that trains without DDP."""

    name: str
    device_ids: tuple[Int64, ...]
    """empty without an accelerator: it then only calls its module"""
    num_parameters: Int64
    parameter_bytes: Int64


class Batch(NamedTuple):
    """One batch, as a DataLoader yielded it."""

    iteration: Int64
    """the number of the pass over the loader, from 1"""
    place: Int64
    """in the pass, from 1"""
    samples: tuple[int, ...]
    """a digest of each of the first samples: equal where what was read of them is equal"""


class ProcessExit(Struct, frozen=True):
    """How a process ended, as the one saw it that had started it."""

    exit_code: Int64
    """negative: the signal that ended it"""
    host: str | None = None
    pid: Int64 | None = None
    rank: Int64 | None = None
    unix_ns: Int64 | None = None
    is_job: bool = False
    """it is the job's first process"""
    interrupted: bool = False
    """the user asked it to end"""


class Loader(Struct, frozen=True):
    """One DataLoader from which batches were fetched."""

    sampler: str
    """the name of the class that draws the indices"""
    dataset_size: Int64 | None
    batch_size: Int64 | None
    num_workers: Int64
    num_iterations: Int64
    """how often a pass over it was begun"""
    epochs_set: tuple[Int64, ...] | None
    """a DistributedSampler's epoch: that of each pass which went to its end, and of the last one; else ``None``"""
    shuffles: bool
    set_epoch_called: bool = False
    num_batches: Int64 | None = None
    """how many were fetched; ``None``, as all that follows: an older ddpprof recorded it"""
    num_fed: Int64 | None = None
    """batches which a DDP forward with gradients followed, before the next one of this loader"""
    num_passed_on: Int64 | None = None
    """recorded forwards with gradients whose largest input is as large as a tensor of a recent batch"""
    waited_ns: Int64 | None = None
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


class Replica(Struct, frozen=True):
    """Some values of one rank's copy of a model: the same places in it on every rank."""

    module: Int64
    """index into ``Record.modules``"""
    steps: tuple[Int64, Int64]
    """before which they were read"""
    before: tuple[float, ...]
    after: tuple[float, ...]
    resolution: float
    """of the coarsest type among them: the least number that makes a difference beside 1"""
    num_unreduced_passes: Int64
    """backward passes of the recorded steps that no forward preceded: their gradients stay on this rank"""


class Forward(Struct, frozen=True, array_like=True):
    """One ``DistributedDataParallel.forward``, by the host's clock since 1970."""

    module: Int64
    """index into ``Record.modules``"""
    start_ns: Int64
    inner_start_ns: Int64
    """DDP's own work before the module's forward is over"""
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
    """when each parameter's gradient was accumulated, in the reducer's order; ``None``: it was not"""
    buckets: tuple[BucketTimes, ...] = ()
    """those that were timed"""
    adds_up: bool = False
    """the module had gradients already when it began"""

    @property
    def last_ready_ns(self) -> int | None:
        """When the last gradient was accumulated."""
        return max((ns for ns in self.ready_ns if ns is not None), default=None)


class DeviceMemory(Struct, frozen=True, array_like=True):
    """What one process holds on one accelerator, in bytes."""

    index: Int64
    allocated_bytes: Int64
    """in tensors"""
    peak_bytes: Int64
    """in tensors, at most since the process began"""
    reserved_bytes: Int64
    """by torch's allocator, tensors and what it keeps for others"""
    is_own: bool = True
    """the process trains on it; else it only holds memory or a context there"""
    uuid: str | None = None
    """the same for all processes, whatever index they see it under"""
    total_bytes: Int64 | None = None


class Memory(Struct, frozen=True):
    """One process's memory at the end of a step, in bytes."""

    rss_bytes: Int64 | None = field(name="rss", default=None)
    """what of the process is in the host's memory"""
    peak_rss_bytes: Int64 | None = field(name="peak_rss", default=None)
    devices: tuple[DeviceMemory, ...] = ()
    """those on which it trains"""


class RpcCall(Struct, frozen=True, array_like=True):
    """One call through ``torch.distributed.rpc``, by the host's clock since 1970. Bytes are those of its tensors."""

    callee: str
    function: str
    kind: str
    """``"sync"`` or ``"async"``"""
    start_ns: Int64
    end_ns: Int64 | None
    """``None``: not answered within the step"""
    request_bytes: Int64
    reply_bytes: Int64 | None


class RecordedStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step as the light recorder saw it. Times are nanoseconds since 1970."""

    number: Int64
    mode: StepMode
    start_ns: Int64
    data_ns: Int64 | None = None
    """time that the training thread waited for its DataLoader"""
    forwards: tuple[Forward, ...] = ()
    optimizers: tuple[tuple[Int64, Int64], ...] = ()
    """start and end of each ``Optimizer.step``; of one with a closure, the parts before, between and after its calls"""
    passes: tuple[BackwardPass, ...] = ()
    """synchronised ones, ascending by origin; a module may have several in a step"""
    torch_stats: Mapping[Int64, Mapping[str, Int64]] = field(default_factory=dict)
    """per module, times from torch's ``_get_ddp_logging_data()``: those of the iteration *before* this step's last"""
    memory: Memory | None = None
    rpc: tuple[RpcCall, ...] = ()
    rpc_left_out: Int64 = 0
    """calls beyond those that a step keeps"""
    end_ns: Int64
    """stands last: the recorder learns it when all else is encoded"""


class Record(Struct, frozen=True, kw_only=True):
    """Everything recorded about one rank. Steps that were skipped, or only warmed up the profiler, are not in it."""

    rank: Int64
    world_size: Int64
    host: str
    pid: Int64
    device: str
    backend: str
    torch: str
    local_rank: Int64 | None = None
    modules: tuple[DdpModule, ...] = ()
    loaders: tuple[Loader, ...] = ()
    checkpoints: tuple[str, ...] = ()
    """absolute paths written with ``torch.save``"""
    steps: tuple[RecordedStep, ...] = ()
    """from a file of their own"""
    profiler_pause_ns: Int64 | None = None
    """how long training stood still for starting the profiler and writing the trace"""
    ended: str | None = None
    """``"finished"``, ``"interrupted"``, ``"failed: …"`` or ``None`` where the process never got to say"""
    ended_unix_ns: Int64 | None = None
    num_steps: Int64 | None = None
    """that the rank had finished when it ended, or when it was last heard of"""
    last_step_unix_ns: Int64 | None = None
    """when the last of them ended; only of a rank that did not say how it ended"""
    group_size: Int64 | None = None
    """ranks that average their gradients together"""
    framework: str | None = None
    """whose function made the DDP module: ``"transformers"``, ``"lightning"``, ``"fabric"``, ``"accelerate"``"""
    num_cores: Int64 | None = None
    """that the process may run on"""
    num_threads: Int64 | None = None
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
