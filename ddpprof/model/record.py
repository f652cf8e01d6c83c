"""The record of one rank, written by the recorder and read by the loader. These structs define the file format.

    rank-N.facts.json     `Record` without its steps, and the version of the format
    rank-N.steps.jsonl    one `RecordedStep` per line

Structs that occur often are stored as arrays, with their fields in the order of definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from ddpprof.model.ddp_module import Compilation, DdpModule
from ddpprof.model.json_files import Int64
from ddpprof.model.links import LinkFacts


class StepMode(StrEnum):
    """How the recorder treated a step."""

    SKIP = "skip"
    OFF = "off"
    LIGHT = "light"
    WARMUP = "warmup"
    PROFILED = "profiled"
    BASELINE = "baseline"
    """like `PROFILED`, but without gradient communication"""
    ALONE = "alone"
    """like `LIGHT`, but without gradient communication"""
    WITHOUT_DDP = "without_ddp"
    """like `OFF`, but DDP does nothing except call its module"""
    CUT = "cut"
    """a profiled step that took too long; only its first part is in the trace"""
    DONE = "done"


DETAILED_MODES = (StepMode.LIGHT, StepMode.PROFILED, StepMode.BASELINE, StepMode.ALONE)
"""modes that record the parts of a step; in other modes, at most its duration is recorded"""


TORCH_TIMES = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)
"""names in ``_get_ddp_logging_data()`` of the times that DDP measures in each iteration"""


class Forward(Struct, frozen=True, array_like=True):
    """One call of ``DistributedDataParallel.forward``. Times are in ns since 1970, by the host's clock."""

    module: Int64
    """index into ``Record.modules``"""
    start_ns: Int64
    inner_start_ns: Int64
    """end of the work that DDP does before the forward pass of the module"""
    inner_end_ns: Int64
    end_ns: Int64
    buffer_sync_ns: Int64
    rebuild_ns: Int64
    synchronizes: bool
    """``False`` under ``no_sync()``"""
    has_gradients: bool = True
    """``False`` under ``no_grad()``, for example in an evaluation"""


class BucketTimes(Struct, frozen=True, array_like=True):
    """One bucket in one backward pass. Times are in ns since 1970, by the host's clock."""

    index: Int64
    launched_ns: Int64 | None
    finished_ns: Int64 | None


class BackwardPass(Struct, frozen=True, array_like=True):
    """One backward pass through one DDP module, with gradient synchronization. Times are in ns since 1970."""

    module: Int64
    """index into ``Record.modules``"""
    origin_ns: Int64
    """end of the module's last forward pass before the backward pass"""
    ready_ns: tuple[Int64 | None, ...]
    """time at which each gradient was accumulated, in the reducer's parameter order; ``None`` if it was not accumulated
    """
    buckets: tuple[BucketTimes, ...] = ()
    """buckets with recorded times"""
    adds_up: bool = False
    """True if the module already had gradients when the pass began (gradient accumulation)"""
    call: Int64 = 0
    """number of the ``backward()`` call in the step; one call may go through several modules; 0 if unknown"""

    @property
    def last_ready_ns(self) -> int | None:
        """Time at which the last gradient was accumulated."""
        return max((ns for ns in self.ready_ns if ns is not None), default=None)


class DeviceMemory(Struct, frozen=True, array_like=True):
    """Memory that one process holds on one accelerator, in bytes."""

    index: Int64
    allocated_bytes: Int64
    """bytes allocated for tensors"""
    peak_bytes: Int64
    """peak of the bytes allocated for tensors since the process began"""
    reserved_bytes: Int64
    """bytes reserved by PyTorch's caching allocator"""
    is_own: bool = True
    """True if the process trains on the device; False if it only has memory or a context there"""
    uuid: str | None = None
    """identifier of the device; unlike the index, it is the same in all processes"""
    total_bytes: Int64 | None = None


class MemoryPeak(Struct, frozen=True, array_like=True):
    """Part of a step in which a peak of memory was reached."""

    device: Int64 | None
    """index of the accelerator; ``None`` for the host"""
    part: str
    """``"forward"``, which includes the loss, ``"backward"``, ``"optimizer"`` or ``"other"``"""
    peak_bytes: Int64


class Memory(Struct, frozen=True):
    """Memory of one process at the end of a step, in bytes."""

    rss_bytes: Int64 | None = field(name="rss", default=None)
    """resident memory of the process on the host, in bytes"""
    peak_rss_bytes: Int64 | None = field(name="peak_rss", default=None)
    devices: tuple[DeviceMemory, ...] = ()
    """devices on which the process trains"""


class RpcCall(Struct, frozen=True, array_like=True):
    """One call through ``torch.distributed.rpc``. Times are in ns since 1970; only the bytes of tensors are counted."""

    callee: str
    function: str
    kind: str
    """``"sync"`` or ``"async"``"""
    start_ns: Int64
    end_ns: Int64 | None
    """``None`` if no reply arrived within the step"""
    request_bytes: Int64
    reply_bytes: Int64 | None


class RecordedStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step as recorded by the light recorder. Times are in ns since 1970."""

    number: Int64
    mode: StepMode
    start_ns: Int64
    data_ns: Int64 | None = None
    """time that the training thread waited for the DataLoader"""
    forwards: tuple[Forward, ...] = ()
    began_evaluation: bool = False
    """whether a pass over a DataLoader began in the step, without gradients or with all DDP modules in eval mode"""
    optimizers: tuple[tuple[Int64, Int64], ...] = ()
    """start and end of each ``Optimizer.step``; if it has a closure, of the parts outside the closure"""
    passes: tuple[BackwardPass, ...] = ()
    """backward passes with gradient synchronization, by `origin_ns`; a module may have several in a step"""
    torch_stats: Mapping[Int64, Mapping[str, Int64]] = field(default_factory=dict)
    """times per module from ``_get_ddp_logging_data()``, for the iteration *before* the last one of this step"""
    memory: Memory | None = None
    rpc: tuple[RpcCall, ...] = ()
    input_numel: Int64 = 0
    """number of elements in the largest input of a forward pass, summed over all forward passes with gradients"""
    rpc_left_out: Int64 = 0
    """number of RPC calls beyond the maximum recorded per step"""
    random_states: Mapping[str, Int64] = field(default_factory=dict)
    """digests of the states of PyTorch's random number generators at the start of the step, by device type; the CPU
    generator is omitted if a DataLoader has just drawn from it at the start of a pass
    """
    end_ns: Int64
    """must be the last field, because it is set after the other fields have been encoded"""

    @property
    def has_evaluation(self) -> bool:
        """Whether the script ran an evaluation in the step, through DDP or without it."""
        return self.began_evaluation or not all(one.has_gradients for one in self.forwards)


class DataParallelModule(Struct, frozen=True):
    """One ``nn.DataParallel`` instance in a process without DDP."""

    name: str
    device_ids: tuple[Int64, ...]
    """device indices; empty without an accelerator, because ``DataParallel`` then only calls its module"""
    num_parameters: Int64
    parameter_bytes: Int64


class Batch(NamedTuple):
    """One batch from a DataLoader."""

    iteration: Int64
    """number of the pass over the loader, starting at 1"""
    place: Int64
    """position in the pass, starting at 1"""
    samples: tuple[int, ...]
    """digests of the first samples; if digests are equal, the parts of the samples that were read are equal"""


class Loader(Struct, frozen=True):
    """One DataLoader from which batches were fetched."""

    sampler: str
    """class of the sampler"""
    dataset_size: Int64 | None
    batch_size: Int64 | None
    num_workers: Int64
    num_iterations: Int64
    """number of passes begun"""
    epochs_set: tuple[Int64, ...] | None
    """epoch of the ``DistributedSampler`` in each pass; ``None`` for other samplers"""
    shuffles: bool
    set_epoch_called: bool = False
    num_batches: Int64 | None = None
    """number of fetched batches; this and the following fields are ``None`` in records of older versions of ddpprof"""
    num_fed: Int64 | None = None
    """number of batches for which a DDP forward pass with gradients began before the loader's next batch was fetched"""
    num_passed_on: Int64 | None = None
    """number of recorded forward passes with gradients for which the largest input is as large as a tensor of a recent
    batch
    """
    waited_ns: Int64 | None = None
    """time that the training thread waited for this loader in the recorded steps"""
    persistent_workers: bool = False
    batches: tuple[Batch, ...] = ()
    """batches of the recorded steps with samples that could be read"""
    batches_per_pass: Int64 | None = None
    """``len(loader)``; ``None`` for an ``IterableDataset``, because PyTorch can only estimate its length"""
    worker_seeds: tuple[int, ...] = ()
    """digests of the worker seeds in the first passes, if they are drawn by PyTorch or by the loader"""
    draws_in_workers: bool = False
    """True if the code of the dataset draws random numbers in the workers"""
    has_generator: bool = False
    """True if the script passed a ``generator``"""

    @property
    def is_iterable(self) -> bool:
        """Whether the dataset is an ``IterableDataset``, for which PyTorch uses a placeholder sampler."""
        return self.sampler == "_InfiniteConstantSampler"

    @property
    def feeds_training(self) -> bool:
        """Whether the batches are used for training: a forward pass with gradients follows at least half of them."""
        return bool(self.num_fed) and 2 * (self.num_fed or 0) >= (self.num_batches or 0)


class Replica(Struct, frozen=True):
    """Samples of the parameters on one rank, at positions that are the same on every rank."""

    module: Int64
    """index into ``Record.modules``"""
    steps: tuple[Int64, Int64]
    """numbers of steps; the values were read before each of these steps"""
    before: tuple[float, ...]
    after: tuple[float, ...]
    resolution: float
    """largest machine epsilon of the sampled data types"""
    num_unreduced_passes: Int64
    """number of recorded backward passes without a DDP forward pass, so that their gradients were not reduced"""


class UnaveragedParameters(Struct, frozen=True):
    """Parameters that a rank trains without DDP averaging their gradients."""

    module: str
    """class of the DDP module that contains the parameters or, if there is none, of the outermost module that does"""
    names: tuple[str, ...]
    is_wrapped: bool
    """True if they belong to a DDP module that the script never calls"""
    replica: Replica
    """samples of their values; its `module` is an index into ``Record.unaveraged``"""
    shapes: tuple[tuple[Int64, ...], ...] = ()
    """shapes of all checked parameters of the module"""


class UntrainedParameters(Struct, frozen=True):
    """Parameters that get gradients but are not trained by any optimizer."""

    module: str
    """class of the DDP module that contains the parameters or, if there is none, of the outermost module that does"""
    names: tuple[str, ...]
    num_bytes: Int64
    is_wrapped: bool = True
    """True if they belong to a DDP module, which reduces their gradients"""


class OptimizerFacts(Struct, frozen=True):
    """One optimizer that has taken steps."""

    name: str
    """its class"""
    state_bytes: Int64
    """bytes of the tensors in the optimizer's state, such as Adam's two moments"""
    is_sharded: bool = False
    """True if this rank keeps the state of only some parameters, as with ``ZeroRedundancyOptimizer``"""
    is_fused: bool | None = None
    """value of the argument ``fused``; ``None`` if it was not given or does not exist"""
    could_be_fused: bool = False
    """True if a fused implementation exists for all parameters on their devices"""
    takes_sparse: bool = False
    """True if the optimizer takes the same steps with sparse and with dense gradients"""
    num_groups: Int64 = 0
    """number of its parameter groups"""
    num_parameters: Int64 = 0
    """number of parameter tensors in all groups"""


class HostRead(Struct, frozen=True):
    """A line of the script in which the host waits for the accelerator in profiled steps."""

    written: str
    """called function, such as ``item()``"""
    place: str
    """line of the user's code, as ``file:line in function``"""
    num_calls: Int64
    waited_ns: Int64
    """total time that the calls took"""
    num_steps: Int64
    """number of profiled steps in which calls were recorded"""
    library: str = ""
    """file of PyTorch that makes the calls when the line calls it, such as ``amp/grad_scaler.py``; otherwise empty"""

    @property
    def is_of_scaler(self) -> bool:
        """Whether a `GradScaler` reads whether gradients overflowed."""
        return self.library == "amp/grad_scaler.py"

    @property
    def empties_cache(self) -> bool:
        return self.written == EMPTY_CACHE


EMPTY_CACHE = "torch.cuda.empty_cache()"


class CodeSamples(Struct, frozen=True):
    """Samples of the training thread in profiled steps: the line of the script that it executed."""

    began_ns: Int64
    """beginning of the first sample, ns since 1970"""
    ends_us: tuple[Int64, ...]
    """end of each sample, µs since the beginning; a sample begins at the end of the previous one"""
    places: tuple[Int64, ...]
    """index in `lines` for each sample; -1 if no code of the user was running"""
    lines: tuple[str, ...]
    """lines of the user's code, as ``file:line in function``"""
    is_in_framework: tuple[bool, ...]
    """for each line, whether it was calling a function of PyTorch or of a training framework"""
    is_in_backward: tuple[bool, ...] = ()
    """for each line, whether autograd ran it in a backward pass; empty in records of older versions of ddpprof"""


class CollectiveOfSomeRanks(Struct, frozen=True):
    """A collective that the script calls on only some of the ranks, which makes the job hang."""

    name: str
    place: str
    """line of the script, as ``file:line in function``"""
    condition: str
    """source code of the condition for the call, such as ``"rank == 0"``"""


class UnusualCollective(Struct, frozen=True):
    """A collective that a rank called more often in its last step than in earlier steps.

    The rank continued after the call, so only collectives that return without waiting for the other ranks are
    considered.
    """

    name: str
    num_values: int
    place: str | None
    """line of the user's code that called it, in the form ``file:line in function``"""


def error_in(ended: str | None) -> str | None:
    """Return the error that ended a rank, in the form ``"failed: …"``, or ``None`` if no error ended it."""
    return ended if ended is not None and ended.startswith("failed") else None


class Record(Struct, frozen=True, kw_only=True):
    """Everything recorded about one rank. Skipped steps and warm-up steps of the profiler are not included."""

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
    """recorded steps, which are stored in their own file"""
    profiler_pause_ns: Int64 | None = None
    """time that training was paused to start the profiler and to write the trace"""
    ended: str | None = None
    """``"finished"``, ``"interrupted"``, ``"failed: …"``, or ``None`` if the process could not record how it ended"""
    ended_unix_ns: Int64 | None = None
    num_steps: Int64 | None = None
    """number of finished steps when the rank ended or, if unknown, at its last known activity"""
    last_step_unix_ns: Int64 | None = None
    """end of the last finished step; only set if the rank did not record how it ended"""
    group_size: Int64 | None = None
    """number of ranks that average their gradients together"""
    group_ranks: tuple[Int64, ...] | None = None
    """ranks that average their gradients with this rank; ``None`` if all ranks of the job do, or if unknown"""
    framework: str | None = None
    """framework that created the DDP module: ``"transformers"``, ``"lightning"``, ``"fabric"``, ``"accelerate"``"""
    is_compiled: bool = False
    """True if torch.compile has compiled code in the process"""
    is_at_compile_limit: bool = False
    """True if torch.compile has stopped compiling a function that was recompiled too often"""
    compilation: Compilation | None = None
    """how torch.compile is applied to the first DDP module; ``None`` if it is not applied, or if unknown"""
    num_cores: Int64 | None = None
    """number of cores that the process may use"""
    num_threads: Int64 | None = None
    """``torch.get_num_threads()``"""
    data_parallel: tuple[DataParallelModule, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    """devices on which the process had memory or a context when the record was last written"""
    peaks: tuple[MemoryPeak, ...] = ()
    """memory peaks at the end of the steps before the recorded steps"""
    replicas: tuple[Replica, ...] = ()
    """samples of the parameters of modules that could be read, if the recording was completed"""
    run_id: str | None = None
    """identifier shared by all ranks of a job"""
    profiles: bool = True
    """True if the rank was selected for profiling; in a large job, only some ranks are selected"""
    no_trace: str | None = None
    """reason why there is no trace, or why the trace is incomplete"""
    timeout_s: float | None = None
    """timeout of the process group's collectives"""
    joins: bool = False
    """True if training runs within ``DistributedDataParallel.join()``, which allows uneven numbers of batches"""
    of_some_ranks: tuple[CollectiveOfSomeRanks, ...] = ()
    """collectives that the training script calls on only some ranks; only unambiguous cases are included"""
    unfrozen: tuple[str, ...] = ()
    """names of trained parameters that DDP does not average, because they were frozen when DDP was constructed"""
    ended_place: str | None = None
    """line of the user's code at which an error ended the rank, in the form ``file:line in function``"""
    ended_in: str | None = None
    """``torch.distributed`` collective in which that error was raised"""
    ended_parameters: tuple[Int64, ...] = ()
    """indices, in the reducer's order, of the parameters listed in DDP's error message"""
    ended_in_checkpoint: bool = False
    """True if the error was raised in the backward pass of a checkpoint with ``use_reentrant=True``"""
    was_aborted_by_library: bool = False
    """True if a non-Python thread, such as one of gloo, aborted the process"""
    unusual_collective: UnusualCollective | None = None
    """collective that a failed rank called more often in its last step than before, if any"""
    unaveraged: tuple[UnaveragedParameters, ...] = ()
    untrained: tuple[UntrainedParameters, ...] = ()
    host_reads: tuple[HostRead, ...] = ()
    """lines at which the training thread waited for the accelerator in profiled steps, longest waits first"""
    code_samples: CodeSamples | None = None
    """lines of the script that ran in profiled steps"""
    optimizers: tuple[OptimizerFacts, ...] | None = None
    """optimizers that have taken steps; ``None`` in records of older versions of ddpprof"""
    core_list: str | None = None
    """numbers of the cores that the process may use, separated by commas"""
    cpu_quota: float | None = None
    """CPU limit of the control group, as a number of cores; ``None`` if there is no limit"""
    machine_cores: Int64 | None = None
    """number of cores of the machine"""
    debugging: tuple[str, ...] = ()
    """settings for debugging that slow down each step: ``detect_anomaly`` or environment variables with their value"""
    links: LinkFacts | None = None
    """links of the machine; ``None`` in records of older versions of ddpprof"""

    def parameters_in_error(self, modules: Sequence[DdpModule]) -> tuple[str, ...]:
        """Return the names of the parameters in DDP's error message; empty if there are several modules."""
        if len(modules) != 1 or not all(0 <= index < len(modules[0].parameters) for index in self.ended_parameters):
            return ()
        return tuple(modules[0].parameters[index].name for index in self.ended_parameters)

    @property
    def training_steps(self) -> tuple[RecordedStep, ...]:
        """Recorded steps, except steps recorded only for comparison."""
        return tuple(step for step in self.steps_to_replay if step.mode is not StepMode.ALONE)

    @property
    def steps_to_replay(self) -> tuple[RecordedStep, ...]:
        """Training steps, and the steps that measure computation without communication (`StepMode.ALONE`)."""
        return tuple(step for step in self.steps if step.mode not in (StepMode.BASELINE, StepMode.CUT))
