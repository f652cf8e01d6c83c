"""The record of one rank: the recorder writes it, the loader reads it, measures use it. Only this file has its layout.

    rank-N.facts.json     `Record` without its steps, and the number of the format
    rank-N.steps.jsonl    one `RecordedStep` per line

Structs that come in large numbers are stored as arrays, with their fields in the order of their definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

from ddpprof.model.step_mode import StepMode

Int64 = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
"""integer that fits into int64, as does the sum of two"""
Count = Annotated[int, Meta(ge=0, le=1 << 62)]

TORCH_TIMES = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)
"""names of the times that DDP takes of an iteration, in ``_get_ddp_logging_data()``"""

_HALVING_HOOKS = ("fp16_compress_hook", "bf16_compress_hook")
"""torch's hooks that send gradients of 4 bytes in 2"""


class Parameter(Struct, frozen=True, array_like=True):
    name: str
    num_bytes: Int64
    dtype: str | None = None
    """such as ``float32``; ``None`` in records of an older ddpprof, which also lack the shape"""
    shape: tuple[Int64, ...] = ()
    is_sparse: bool = False
    """True if its gradient is expected to be sparse"""


def sends_unchanged(comm_hook: str | None) -> bool:
    """Return whether a comm hook, if there is one, sends gradients as they are."""
    return comm_hook is None or "allreduce_hook" in comm_hook


class DdpModule(Struct, frozen=True):
    """One ``DistributedDataParallel`` instance, as the recorder found it."""

    name: str
    settings: Mapping[str, object]
    """constructor arguments by torch's names, including defaults"""
    comm_hook: str | None
    parameters: tuple[Parameter, ...]
    """parameters in the reducer's order"""
    buckets: tuple[tuple[Int64, ...], ...]
    """parameter indices of each bucket, in the layout of the recorded steps"""
    num_buffers: Int64
    buffer_bytes: Int64
    num_batch_norms: Int64
    unused: tuple[str, ...] | None = None
    """parameters without gradient in every examined backward pass; ``None`` if none was examined"""
    graph_is_static: bool | None = None
    """torch's ``can_set_static_graph``"""
    num_searched_passes: Int64 = 0
    """number of backward passes examined for unused parameters"""
    num_lacking_passes: Int64 | None = None
    """number of these that left some parameter without gradient; ``None`` if not recorded"""

    def message_bytes(self, bucket: int) -> int | None:
        """Return the size of a bucket's all-reduce; ``None`` if it is unknown what the module's comm hook sends."""
        num_bytes = self.bucket_bytes(bucket)
        if sends_unchanged(self.comm_hook) or num_bytes is None:
            return num_bytes
        dtypes = {self.parameters[index].dtype for index in self.buckets[bucket]}
        return num_bytes // 2 if self.comm_hook in _HALVING_HOOKS and dtypes == {"float32"} else None

    def bucket_bytes(self, bucket: int) -> int | None:
        """Return the size of a bucket; ``None`` if gradients in it are sparse, of which only some rows are sent."""
        parameters = [self.parameters[index] for index in self.buckets[bucket]]
        return None if any(one.is_sparse for one in parameters) else sum(one.num_bytes for one in parameters)


class DataParallelModule(Struct, frozen=True):
    """One ``nn.DataParallel`` instance of a process that trains without DDP."""

    name: str
    device_ids: tuple[Int64, ...]
    """device indices; empty without an accelerator, when it only calls its module"""
    num_parameters: Int64
    parameter_bytes: Int64


class Batch(NamedTuple):
    """One batch from a DataLoader."""

    iteration: Int64
    """number of the pass over the loader, from 1"""
    place: Int64
    """position in the pass, from 1"""
    samples: tuple[int, ...]
    """digests of the first samples, which are equal if the samples that were read are equal"""


class Loader(Struct, frozen=True):
    """One DataLoader from which batches were fetched."""

    sampler: str
    """class of the sampler, which draws the indices"""
    dataset_size: Int64 | None
    batch_size: Int64 | None
    num_workers: Int64
    num_iterations: Int64
    """number of passes that were begun"""
    epochs_set: tuple[Int64, ...] | None
    """a DistributedSampler's epoch in each completed pass and the last one; ``None`` for other samplers"""
    shuffles: bool
    set_epoch_called: bool = False
    num_batches: Int64 | None = None
    """number of fetched batches; ``None`` in records of an older ddpprof, as for the fields below"""
    num_fed: Int64 | None = None
    """number of batches followed by a DDP forward with gradients before this loader's next batch"""
    num_passed_on: Int64 | None = None
    """number of recorded forwards with gradients whose largest input is as large as a tensor of a recent batch"""
    waited_ns: Int64 | None = None
    """time that the training thread waited for it in the recorded steps"""
    persistent_workers: bool = False
    batches: tuple[Batch, ...] = ()
    """batches of the recorded steps whose samples could be read"""
    batches_per_pass: Int64 | None = None
    """``len(loader)``; ``None`` for an `IterableDataset`, whose length torch only guesses"""

    @property
    def is_iterable(self) -> bool:
        """Whether its dataset is an ``IterableDataset``, for which torch uses a placeholder sampler."""
        return self.sampler == "_InfiniteConstantSampler"

    @property
    def feeds_training(self) -> bool:
        """Whether its batches are trained on; no forward with gradients follows those of an evaluation."""
        return bool(self.num_fed) and 2 * (self.num_fed or 0) >= (self.num_batches or 0)


class Replica(Struct, frozen=True):
    """Some values of one rank's copy of a model, at the same positions on every rank."""

    module: Int64
    """index into ``Record.modules``"""
    steps: tuple[Int64, Int64]
    """numbers of the steps before which they were read"""
    before: tuple[float, ...]
    after: tuple[float, ...]
    resolution: float
    """machine epsilon of the coarsest type among them"""
    num_unreduced_passes: Int64
    """number of recorded backward passes not preceded by a forward, whose gradients stay on this rank"""


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
    """most bytes in tensors since the process began"""
    reserved_bytes: Int64
    """bytes held by torch's allocator, in tensors or cached"""
    is_own: bool = True
    """True if the process trains on it; otherwise it only holds memory or a context there"""
    uuid: str | None = None
    """identifier that is the same for all processes, whatever their index for it"""
    total_bytes: Int64 | None = None


class Memory(Struct, frozen=True):
    """One process's memory at the end of a step, in bytes."""

    rss_bytes: Int64 | None = field(name="rss", default=None)
    """process memory that resides in the host's RAM"""
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
    """synchronised passes, by ascending origin; a module may have several in a step"""
    torch_stats: Mapping[Int64, Mapping[str, Int64]] = field(default_factory=dict)
    """times per module from torch's ``_get_ddp_logging_data()``, of the iteration *before* this step's last"""
    memory: Memory | None = None
    rpc: tuple[RpcCall, ...] = ()
    rpc_left_out: Int64 = 0
    """number of calls beyond those kept per step"""
    random_states: Mapping[str, Int64] = field(default_factory=dict)
    """digests of the states of torch's random-number generators when the step began, by the type of their device;
    without that of the CPU if a DataLoader has just drawn from it, at the beginning of a pass"""
    end_ns: Int64
    """stands last, since the recorder learns it after encoding the rest"""

    @property
    def has_evaluation(self) -> bool:
        """Whether the training evaluated in the step, through DDP or without it."""
        return self.began_evaluation or not all(one.has_gradients for one in self.forwards)


class CollectiveOfSomeRanks(Struct, frozen=True):
    """A collective that the script calls on some of the ranks only, so that the job hangs there."""

    name: str
    place: str
    """line of the script, as ``file:line in function``"""
    condition: str
    """source of the condition within which it is called, such as ``"rank == 0"``"""


class UnusualCollective(Struct, frozen=True):
    """A collective that a rank called more often in its last step than in the steps before.

    It is one whose sender does not wait for the others, so that the rank went on.
    """

    name: str
    num_values: int
    place: str | None
    """line of the user's code that called it, as ``file:line in function``"""


def error_in(ended: str | None) -> str | None:
    """Return how a rank says that it ended, if that was with an error: ``"failed: …"``."""
    return ended if ended is not None and ended.startswith("failed") else None


class Record(Struct, frozen=True, kw_only=True):
    """Everything recorded about one rank, except steps that were skipped or only warmed up the profiler."""

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
    """absolute paths written by ``torch.save``"""
    steps: tuple[RecordedStep, ...] = ()
    """steps, from a file of their own"""
    profiler_pause_ns: Int64 | None = None
    """time that training paused to start the profiler and write the trace"""
    ended: str | None = None
    """``"finished"``, ``"interrupted"``, ``"failed: …"``, or ``None`` if the process could not say"""
    ended_unix_ns: Int64 | None = None
    num_steps: Int64 | None = None
    """number of steps finished when the rank ended, or was last heard of"""
    last_step_unix_ns: Int64 | None = None
    """end of the last of these, only for a rank that did not say how it ended"""
    group_size: Int64 | None = None
    """number of ranks that average their gradients together"""
    group_ranks: tuple[Int64, ...] | None = None
    """these ranks; ``None`` if they are all ranks of the job, or unknown"""
    framework: str | None = None
    """framework that made the DDP module: ``"transformers"``, ``"lightning"``, ``"fabric"``, ``"accelerate"``"""
    num_cores: Int64 | None = None
    """number of cores that the process may use"""
    num_threads: Int64 | None = None
    """``torch.get_num_threads()``"""
    data_parallel: tuple[DataParallelModule, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    """devices where the process held memory or a context when the record was last written"""
    replicas: tuple[Replica, ...] = ()
    """values of modules whose parameters could be read, in a recording that ran to its end"""
    run_id: str | None = None
    """identifier that is the same on all ranks of a job"""
    profiles: bool = True
    """True if the rank was to be profiled; in a large job not all are"""
    no_trace: str | None = None
    """why it has no trace, or an incomplete one"""
    timeout_s: float | None = None
    """time after which the process group gives a collective up"""
    joins: bool = False
    """True if DDP trains within ``join()``, which lets ranks have different numbers of batches"""
    of_some_ranks: tuple[CollectiveOfSomeRanks, ...] = ()
    """collectives that the training script calls on some ranks only, as far as its source leaves no doubt"""
    ended_place: str | None = None
    """line of the user's code at which an error ended the rank, as ``file:line in function``"""
    ended_in: str | None = None
    """collective of torch in which that error was raised"""
    unusual_collective: UnusualCollective | None = None
    """of a rank that failed, as far as there is one"""

    @property
    def training_steps(self) -> tuple[RecordedStep, ...]:
        """Recorded steps without those that only serve for comparison."""
        return tuple(step for step in self.steps_to_replay if step.mode is not StepMode.ALONE)

    @property
    def steps_to_replay(self) -> tuple[RecordedStep, ...]:
        """Training steps, and those that show how long computation takes alone."""
        return tuple(step for step in self.steps if step.mode not in (StepMode.BASELINE, StepMode.CUT))
