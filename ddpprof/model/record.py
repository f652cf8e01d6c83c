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

from ddpprof.model.ddp_module import Compilation, CompiledCode, DdpModule
from ddpprof.model.json_files import Int64
from ddpprof.model.links import LinkFacts, Traffic


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
    """like `OFF`, but DDP only calls its module and does nothing else"""
    CUT = "cut"
    """a profiled step that took too long; the trace contains only its beginning"""
    DONE = "done"


DETAILED_MODES = (StepMode.LIGHT, StepMode.PROFILED, StepMode.BASELINE, StepMode.ALONE)
"""modes in which ddpprof records the parts of a step; in all other modes, it records at most the step's duration"""


TORCH_TIMES = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)
"""keys of ``_get_ddp_logging_data()`` for the times that DDP measures in each iteration"""


class Forward(Struct, frozen=True, array_like=True):
    """One call to ``DistributedDataParallel.forward``. Times are in ns since 1970, by the host's clock."""

    module: Int64
    """index into ``Record.modules``"""
    start_ns: Int64
    inner_start_ns: Int64
    """end of DDP's own work before it calls the module's forward pass"""
    inner_end_ns: Int64
    end_ns: Int64
    buffer_sync_ns: Int64
    rebuild_ns: Int64
    synchronizes: bool
    """``False`` under ``no_sync()``; the backward pass then does not reduce gradients"""
    has_gradients: bool = True
    """``False`` under ``no_grad()``, for example in an evaluation"""
    reaches_backward: bool | None = None
    """whether a backward pass of the same step used an output of this forward pass; ``None`` if unknown"""


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
    """time at which each parameter's gradient was accumulated, in the reducer's parameter order; ``None`` if the
    parameter got no gradient
    """
    buckets: tuple[BucketTimes, ...] = ()
    """buckets for which times were recorded"""
    adds_up: bool = False
    """True if the module already had gradients when the pass began (gradient accumulation)"""
    call: Int64 = 0
    """number of the ``backward()`` call within the step; 0 if unknown; one call may go through several modules"""

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
    """largest number of bytes that was allocated for tensors since the process began"""
    reserved_bytes: Int64
    """bytes reserved by PyTorch's caching allocator"""
    is_own: bool = True
    """True if the process trains on the device; False if it has only memory or a context there"""
    uuid: str | None = None
    """identifier of the device that, unlike the index, is the same in all processes"""
    total_bytes: Int64 | None = None


class MemoryPeak(Struct, frozen=True, array_like=True):
    """A peak of memory use, and the part of the step in which it was reached."""

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
    """devices on which the process trains; devices on which it has only memory are not included"""


class RpcCall(Struct, frozen=True, array_like=True):
    """One call through ``torch.distributed.rpc``. Times are in ns since 1970; only the bytes of tensors are counted."""

    callee: str
    function: str
    kind: str
    """``"sync"`` or ``"async"``"""
    start_ns: Int64
    end_ns: Int64 | None
    """time at which the reply arrived; ``None`` if no reply arrived within the step"""
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
    """whether an evaluation began in the step: a pass over a DataLoader without gradients, or with all DDP modules in
    eval mode
    """
    optimizers: tuple[tuple[Int64, Int64], ...] = ()
    """start and end of each ``Optimizer.step``; if it calls a closure, of the parts before and after the closure"""
    passes: tuple[BackwardPass, ...] = ()
    """backward passes with gradient synchronization, sorted by `origin_ns`; a step may have several passes through a
    module
    """
    torch_stats: Mapping[Int64, Mapping[str, Int64]] = field(default_factory=dict)
    """module → times from ``_get_ddp_logging_data()``; they are about the iteration *before* the last iteration of this
    step
    """
    memory: Memory | None = None
    rpc: tuple[RpcCall, ...] = ()
    input_numel: Int64 = 0
    """size of a step's inputs: the number of elements in the largest input tensor of each forward pass with gradients,
    summed over these forward passes
    """
    rpc_left_out: Int64 = 0
    """number of RPC calls that were not recorded because the step had too many"""
    random_states: Mapping[str, Int64] = field(default_factory=dict)
    """device type → digest of the state of PyTorch's random number generator at the start of the step. The CPU
    generator is omitted if a DataLoader drew from it just before, at the start of a pass
    """
    end_ns: Int64
    """end of the step; must be the last field, because it is set after the other fields have been encoded"""

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
    """number of the pass over the DataLoader; the first pass is 1"""
    place: Int64
    """position of the batch in the pass; the first batch is 1"""
    samples: tuple[int, ...]
    """digests of the first samples in the batch; equal digests mean that the parts of the samples that were read are
    equal
    """
    width: Int64 | None = None
    """length to which the sequences of the batch are padded; ``None`` if the batch has no ``attention_mask``"""
    longest: Int64 | None = None
    """number of positions that at least one sequence of the batch uses, according to the ``attention_mask``"""


class Loader(Struct, frozen=True):
    """One DataLoader from which batches were fetched."""

    sampler: str
    """class of the sampler"""
    dataset_size: Int64 | None
    batch_size: Int64 | None
    num_workers: Int64
    num_iterations: Int64
    """number of passes over the loader that have begun"""
    epochs_set: tuple[Int64, ...] | None
    """epoch that the ``DistributedSampler`` had in each pass; ``None`` for other samplers"""
    shuffles: bool
    set_epoch_called: bool = False
    num_batches: Int64 | None = None
    """number of fetched batches; records of older versions of ddpprof lack this field and all later fields"""
    num_fed: Int64 | None = None
    """number of batches that were followed by a DDP forward pass with gradients before the next batch was fetched"""
    num_passed_on: Int64 | None = None
    """number of recorded forward passes (with gradients) in which the largest input has as many elements as a tensor of
    a recent batch
    """
    waited_ns: Int64 | None = None
    """time for which the training thread waited for this loader in the recorded steps"""
    persistent_workers: bool = False
    batches: tuple[Batch, ...] = ()
    """batches that were fetched in the recorded steps and contain samples that ddpprof could read"""
    batches_per_pass: Int64 | None = None
    """``len(loader)``; ``None`` for an ``IterableDataset``, for which PyTorch can only estimate the length"""
    worker_seeds: tuple[int, ...] = ()
    """digests of the seeds of the loader's workers in the first passes, if PyTorch or the loader draws these seeds"""
    draws_in_workers: bool = False
    """True if the dataset's code draws random numbers in the workers"""
    has_generator: bool = False
    """True if the script passed a ``generator`` to the DataLoader"""

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
    """numbers of two steps; `before` was read before the first of these steps, and `after` before the second"""
    before: tuple[float, ...]
    after: tuple[float, ...]
    resolution: float
    """largest machine epsilon of the data types of the sampled parameters"""
    num_unreduced_passes: Int64
    """number of recorded backward passes that no DDP forward pass preceded; DDP did not reduce their gradients"""


class UnaveragedParameters(Struct, frozen=True):
    """Parameters that a rank trains without DDP averaging their gradients."""

    module: str
    """class of the DDP module or, if there is none, of the outermost module that contains the parameters"""
    names: tuple[str, ...]
    is_wrapped: bool
    """True if the parameters belong to a DDP module whose ``forward`` the script never calls"""
    replica: Replica
    """samples of the parameters' values, in which `Replica.module` is an index into ``Record.unaveraged``"""
    shapes: tuple[tuple[Int64, ...], ...] = ()
    """shapes of the checked parameters of the module"""


class UntrainedParameters(Struct, frozen=True):
    """Parameters that get gradients but are not trained by any optimizer."""

    module: str
    """class of the DDP module or, if there is none, of the outermost module that contains the parameters"""
    names: tuple[str, ...]
    num_bytes: Int64
    is_wrapped: bool = True
    """True if the parameters belong to a DDP module, which reduces their gradients"""
    has_no_rate: bool = False
    """True if an optimizer has the parameters, but with a learning rate of 0"""


class OptimizerFacts(Struct, frozen=True):
    """One optimizer that has taken steps."""

    name: str
    """class of the optimizer"""
    state_bytes: Int64
    """bytes of the tensors in the optimizer's state, such as Adam's two moments"""
    is_sharded: bool = False
    """True if this rank keeps the state of only some parameters, as with ``ZeroRedundancyOptimizer``"""
    is_fused: bool | None = None
    """value of the optimizer's ``fused`` argument; ``None`` if the script did not pass the argument, or the optimizer
    does not have it
    """
    could_be_fused: bool = False
    """True if PyTorch has a fused implementation for all parameters on their devices"""
    takes_sparse: bool = False
    """True if the optimizer computes the same update from a sparse gradient as from a dense gradient"""
    num_groups: Int64 = 0
    """number of the optimizer's parameter groups"""
    num_parameters: Int64 = 0
    """number of parameter tensors in all parameter groups"""


class HostRead(Struct, frozen=True):
    """A line of the script that makes the host wait for the accelerator in profiled steps."""

    written: str
    """name of the called function, as users write it, such as ``item()``"""
    place: str
    """line of the user's code that calls the function, as ``file:line in function``"""
    num_calls: Int64
    waited_ns: Int64
    """total duration of the calls"""
    num_steps: Int64
    """number of profiled steps in which ddpprof recorded such calls"""
    library: str = ""
    """file of PyTorch through which the line makes the calls, such as ``amp/grad_scaler.py``; otherwise empty"""

    @property
    def is_of_scaler(self) -> bool:
        """Whether a `GradScaler` makes the calls, to check whether gradients overflowed."""
        return self.library == "amp/grad_scaler.py"

    @property
    def empties_cache(self) -> bool:
        return self.written == EMPTY_CACHE


EMPTY_CACHE = "torch.cuda.empty_cache()"


class CodeSamples(Struct, frozen=True):
    """Samples of the training thread in profiled steps, each with the line of the script that the thread executed."""

    began_ns: Int64
    """start of the first sample, in ns since 1970"""
    ends_us: tuple[Int64, ...]
    """end of each sample, in µs since `began_ns`; each sample starts at the end of the previous sample"""
    places: tuple[Int64, ...]
    """for each sample, index in `lines`; -1 if no code of the user was running"""
    lines: tuple[str, ...]
    """lines of the user's code, as ``file:line in function``"""
    is_in_framework: tuple[bool, ...]
    """for each line, whether it was executing a call into PyTorch or into a training framework"""
    is_in_backward: tuple[bool, ...] = ()
    """for each line, whether autograd executed it in a backward pass; empty in records of older versions of ddpprof"""
    callers: tuple[str, ...] = ()
    """for each line, the line of the user's code that calls the outermost ``nn.Module`` around it; empty if there is
    none. The tuple is empty in records of older versions of ddpprof
    """
    runs_backward: tuple[bool, ...] = ()
    """for each line, whether it was executing a backward pass, outside the user's code; empty in records of older
    versions of ddpprof
    """
    computes_metrics: tuple[bool, ...] = ()
    """for each line, whether it was executing a call into a library that computes metrics, such as torchmetrics; empty
    in records of older versions of ddpprof
    """


class CollectiveOfSomeRanks(Struct, frozen=True):
    """A collective that the script calls on only some of the ranks, which makes the job hang."""

    name: str
    place: str
    """line of the script that calls the collective, as ``file:line in function``"""
    condition: str
    """source code of the condition under which the collective is called, such as ``"rank == 0"``"""


class UnusualCollective(Struct, frozen=True):
    """A collective that a rank called more often in its last step than in earlier steps.

    The rank continued after the call, so only collectives that return without waiting for the other ranks are
    considered.
    """

    name: str
    num_values: int
    place: str | None
    """line of the user's code that called the collective, as ``file:line in function``"""


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
    """absolute paths to which the rank wrote with ``torch.save``"""
    steps: tuple[RecordedStep, ...] = ()
    """recorded steps; they are stored in a separate file"""
    round_trip_ns: Int64 | None = None
    """shortest round trip of a message to the host of the job's key-value store, before the recorded steps"""
    profiler_pause_ns: Int64 | None = None
    """time for which ddpprof paused training, to begin and end recording and profiling, and to write the trace"""
    ended: str | None = None
    """``"finished"``, ``"interrupted"`` or ``"failed: …"``; ``None`` if the process could not record how it ended"""
    ended_unix_ns: Int64 | None = None
    num_steps: Int64 | None = None
    """number of steps that were finished when the rank ended or, if that is unknown, at the rank's last known
    activity
    """
    last_step_unix_ns: Int64 | None = None
    """end of the last finished step; set only if the rank could not record how it ended"""
    group_size: Int64 | None = None
    """number of ranks that average their gradients together"""
    group_ranks: tuple[Int64, ...] | None = None
    """ranks with which this rank averages gradients; ``None`` if these are all ranks of the job, or if unknown"""
    framework: str | None = None
    """framework that created the DDP module: ``"transformers"``, ``"lightning"``, ``"fabric"``, ``"accelerate"``"""
    is_compiled: bool = False
    """True if torch.compile has compiled code in the process"""
    is_at_compile_limit: bool = False
    """True if torch.compile has stopped compiling a function because the function was recompiled too often"""
    compilation: Compilation | None = None
    """how torch.compile is applied to the first DDP module; ``None`` if the module is not compiled, or if unknown"""
    compiled_code: CompiledCode | None = None
    """code that was compiled in or after the first recorded step; ``None`` if there is none, or if unknown"""
    num_cores: Int64 | None = None
    """number of CPU cores on which the process may run"""
    num_threads: Int64 | None = None
    """``torch.get_num_threads()``"""
    data_parallel: tuple[DataParallelModule, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    """devices on which the process had memory or a context when the record was written"""
    peaks: tuple[MemoryPeak, ...] = ()
    """memory peak of the host and of each device in the first steps, and the part of the step in which it was
    reached
    """
    replicas: tuple[Replica, ...] = ()
    """sampled parameter values of each module whose parameters could be read; present only if the recording was
    completed
    """
    run_id: str | None = None
    """identifier of the run, the same on all ranks"""
    profiles: bool = True
    """True if the rank was selected for profiling; in a large job, only some ranks are selected"""
    no_trace: str | None = None
    """reason why there is no trace, or why the trace is incomplete"""
    timeout_s: float | None = None
    """timeout of collectives in the process group"""
    joins: bool = False
    """True if training runs within ``DistributedDataParallel.join()``; ranks may then have different numbers of batches
    """
    of_some_ranks: tuple[CollectiveOfSomeRanks, ...] = ()
    """collectives that the script calls on only some ranks; ddpprof lists only cases that are certain from the source
    code
    """
    unfrozen: tuple[str, ...] = ()
    """names of trained parameters whose gradients DDP does not average, because they were frozen when DDP was
    constructed
    """
    ended_place: str | None = None
    """line of the user's code in which an error ended the rank, as ``file:line in function``"""
    ended_called_at: str | None = None
    """line of the user's code that called the function at `ended_place`, in the same format"""
    learning_rates: tuple[tuple[Int64, float], ...] = ()
    """learning rate of the optimizer's first parameter group after some of the last steps: number of steps, and rate"""
    exit_message: str | None = None
    """argument of the last call to ``sys.exit()`` that was neither 0 nor ``None``; the script may have caught the
    exception that ``sys.exit()`` raises
    """
    exit_place: str | None = None
    """line of the user's code that called ``sys.exit()``"""
    ended_in: str | None = None
    """``torch.distributed`` collective that was running when the error that ended the rank was raised"""
    ended_parameters: tuple[Int64, ...] = ()
    """indices, in the reducer's order, of the parameters listed in the message of the error that ended the rank"""
    ended_in_checkpoint: bool = False
    """True if the rank's error was raised in the backward pass of a ``checkpoint`` with ``use_reentrant=True``"""
    was_aborted_by_library: bool = False
    """True if a thread that does not run Python code, such as a thread of gloo, aborted the process"""
    unusual_collective: UnusualCollective | None = None
    """collective that a failed rank called more often in its last step than in earlier steps, if any"""
    unaveraged: tuple[UnaveragedParameters, ...] = ()
    untrained: tuple[UntrainedParameters, ...] = ()
    host_reads: tuple[HostRead, ...] = ()
    """lines at which the training thread waited for the accelerator in profiled steps, longest total wait first"""
    code_samples: CodeSamples | None = None
    """samples of the lines that the training thread executed in profiled steps"""
    optimizers: tuple[OptimizerFacts, ...] | None = None
    """optimizers that have taken steps; ``None`` in records of older versions of ddpprof"""
    core_list: str | None = None
    """numbers of the CPU cores on which the process may run, separated by commas"""
    cpu_quota: float | None = None
    """CPU limit of the control group, in cores; ``None`` if there is no limit"""
    machine_cores: Int64 | None = None
    """number of cores of the machine"""
    debugging: tuple[str, ...] = ()
    """debugging settings that slow down every step: ``detect_anomaly``, or environment variables with their values"""
    traffic: Traffic | None = None
    """traffic of the interface to other machines, from the first recorded step to the end of the record"""
    links: LinkFacts | None = None
    """links of the machine; ``None`` in records of older versions of ddpprof"""
    threads_per_core: Int64 | None = None
    """number of hardware threads per physical core; each of them counts as a core in the other fields"""

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
