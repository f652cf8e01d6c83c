"""The record of one rank: written by the recorder, read by the loader and used by measures. These structs are its
layout.

    rank-N.facts.json     `Record` without its steps, and the version of the format
    rank-N.steps.jsonl    one `RecordedStep` per line

Structs that occur in large numbers are stored as arrays, with their fields in the order of definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from ddpprof.model.compilation import Compilation
from ddpprof.model.ddp_module import DdpModule
from ddpprof.model.json_files import Int64
from ddpprof.model.links import LinkFacts


class StepMode(StrEnum):
    """What the recorder did in a step."""

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
    """like `OFF`, with DDP only calling its module"""
    CUT = "cut"
    """a profiled step that took too long, so that only its beginning is profiled"""
    DONE = "done"


DETAILED_MODES = (StepMode.LIGHT, StepMode.PROFILED, StepMode.BASELINE, StepMode.ALONE)
"""modes that record the inside of a step; for other steps, only the length is known"""


TORCH_TIMES = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)
"""names of the times that DDP measures in an iteration, in ``_get_ddp_logging_data()``"""


class Forward(Struct, frozen=True, array_like=True):
    """One call of ``DistributedDataParallel.forward``. Times are ns since 1970, by the host's clock."""

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


class DataParallelModule(Struct, frozen=True):
    """One ``nn.DataParallel`` instance of a process that trains without DDP."""

    name: str
    device_ids: tuple[Int64, ...]
    """device indices; empty without an accelerator, in which case it only calls its module"""
    num_parameters: Int64
    parameter_bytes: Int64


class Batch(NamedTuple):
    """One batch from a DataLoader."""

    iteration: Int64
    """number of the pass over the loader, from 1"""
    place: Int64
    """position in the pass, from 1"""
    samples: tuple[int, ...]
    """digests of the first samples; equal digests mean that the samples, as far as they were read, are equal"""


class Loader(Struct, frozen=True):
    """One DataLoader from which batches were fetched."""

    sampler: str
    """class of the sampler, which draws the indices"""
    dataset_size: Int64 | None
    batch_size: Int64 | None
    num_workers: Int64
    num_iterations: Int64
    """number of passes that began"""
    epochs_set: tuple[Int64, ...] | None
    """a DistributedSampler's epoch in each completed pass and in the last one; ``None`` for other samplers"""
    shuffles: bool
    set_epoch_called: bool = False
    num_batches: Int64 | None = None
    """number of fetched batches; ``None`` in records of an older ddpprof, as for the fields below"""
    num_fed: Int64 | None = None
    """number of batches followed by a DDP forward with gradients before this loader's next batch"""
    num_passed_on: Int64 | None = None
    """number of recorded forwards with gradients whose largest input has the size of a tensor of a recent batch"""
    waited_ns: Int64 | None = None
    """time that the training thread waited for it in the recorded steps, ns"""
    persistent_workers: bool = False
    batches: tuple[Batch, ...] = ()
    """batches in the recorded steps whose samples could be read"""
    batches_per_pass: Int64 | None = None
    """``len(loader)``; ``None`` for an `IterableDataset`, whose length torch only guesses"""
    worker_seeds: tuple[int, ...] = ()
    """digests of the seeds that the workers got in its first passes, if torch or the loader's own code draws them"""
    draws_in_workers: bool = False
    """True if its dataset draws random numbers in the workers, as far as its code shows"""
    has_generator: bool = False
    """True if the script gave it its own generator"""

    @property
    def is_iterable(self) -> bool:
        """Whether its dataset is an ``IterableDataset``, for which torch uses a placeholder sampler."""
        return self.sampler == "_InfiniteConstantSampler"

    @property
    def feeds_training(self) -> bool:
        """Whether its batches are trained on. No forward with gradients follows those of an evaluation."""
        return bool(self.num_fed) and 2 * (self.num_fed or 0) >= (self.num_batches or 0)


class Replica(Struct, frozen=True):
    """Some values of one rank's copy of a model, at the same positions on every rank."""

    module: Int64
    """index into ``Record.modules``"""
    steps: tuple[Int64, Int64]
    """numbers of the steps before which the values were read"""
    before: tuple[float, ...]
    after: tuple[float, ...]
    resolution: float
    """machine epsilon of the coarsest type among them"""
    num_unreduced_passes: Int64
    """number of recorded backward passes without a preceding forward, so that their gradients stay on this rank"""


class UnaveragedParameters(Struct, frozen=True):
    """Parameters trained by one rank although no DDP module that the script calls averages their gradients."""

    module: str
    """class of the DDP module that has them, or else of the outermost module that has them"""
    names: tuple[str, ...]
    is_wrapped: bool
    """True if they belong to a DDP module whose forward the script never calls"""
    replica: Replica
    """some of their values; `module` in it is the index among the unaveraged parameters of this rank"""
    shapes: tuple[tuple[Int64, ...], ...] = ()
    """shapes of all checked parameters of the module"""


class OptimizerFacts(Struct, frozen=True):
    """One optimizer that has taken steps."""

    name: str
    """its class"""
    state_bytes: Int64
    """bytes of the tensors in its state, such as Adam's two moments"""
    is_sharded: bool = False
    """True if it keeps the state of some parameters only, as ``ZeroRedundancyOptimizer`` does"""
    is_fused: bool | None = None
    """value of its argument ``fused``; ``None`` if it was not given or does not exist"""
    could_be_fused: bool = False
    """True if it has a fused implementation for all its parameters where they are"""


class HostRead(Struct, frozen=True):
    """One line of the script at which the host waits for the accelerator, in profiled steps."""

    written: str
    """what is called there, such as ``item()``"""
    place: str
    """line of the user's code, as ``file:line in function``"""
    num_calls: Int64
    waited_ns: Int64
    """total time that the calls took"""
    num_steps: Int64
    """number of profiled steps in which calls were noted"""


class CollectiveOfSomeRanks(Struct, frozen=True):
    """A collective that the script calls on some of the ranks only, so that the job hangs there."""

    name: str
    place: str
    """line of the script, as ``file:line in function``"""
    condition: str
    """source of the condition within which it is called, such as ``"rank == 0"``"""


class UnusualCollective(Struct, frozen=True):
    """A collective that a rank called more often in its last step than in the steps before.

    Only collectives count whose sender does not wait for the others, so that the rank continued.
    """

    name: str
    num_values: int
    place: str | None
    """line of the user's code that called it, as ``file:line in function``"""


def error_in(ended: str | None) -> str | None:
    """Return the error with which a rank ended, as ``"failed: …"``; ``None`` if it did not end with an error."""
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
    """steps, from their own file"""
    profiler_pause_ns: Int64 | None = None
    """time that training paused to start the profiler and write the trace, ns"""
    ended: str | None = None
    """``"finished"``, ``"interrupted"``, ``"failed: …"``, or ``None`` if the process could not record it"""
    ended_unix_ns: Int64 | None = None
    num_steps: Int64 | None = None
    """number of steps finished when the rank ended, or at its last sign of life"""
    last_step_unix_ns: Int64 | None = None
    """end of the last of these steps, only for a rank that did not record how it ended"""
    group_size: Int64 | None = None
    """number of ranks that average their gradients together"""
    group_ranks: tuple[Int64, ...] | None = None
    """ranks that average their gradients with this one; ``None`` if they are all ranks of the job, or unknown"""
    framework: str | None = None
    """framework that made the DDP module: ``"transformers"``, ``"lightning"``, ``"fabric"``, ``"accelerate"``"""
    is_compiled: bool = False
    """True if torch.compile compiled anything in the process"""
    compilation: Compilation | None = None
    """how its first DDP module is compiled; ``None`` if torch.compile does not compile it, or if unknown"""
    num_cores: Int64 | None = None
    """number of cores that the process may use"""
    num_threads: Int64 | None = None
    """``torch.get_num_threads()``"""
    data_parallel: tuple[DataParallelModule, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    """devices where the process held memory or a context when the record was last written"""
    replicas: tuple[Replica, ...] = ()
    """values of modules whose parameters could be read, if the recording was completed"""
    run_id: str | None = None
    """identifier shared by all ranks of a job"""
    profiles: bool = True
    """True if the rank was meant to be profiled; in a large job, not all are"""
    no_trace: str | None = None
    """why it has no trace, or an incomplete one"""
    timeout_s: float | None = None
    """timeout of the process group's collectives"""
    joins: bool = False
    """True if DDP trains within ``join()``, which lets ranks have different numbers of batches"""
    of_some_ranks: tuple[CollectiveOfSomeRanks, ...] = ()
    """collectives that the training script calls on some ranks only; only unambiguous cases"""
    unfrozen: tuple[str, ...] = ()
    """parameters that DDP does not average because they were frozen when it was constructed, and that have been trained
    since
    """
    ended_place: str | None = None
    """line of the user's code where an error ended the rank, as ``file:line in function``"""
    ended_in: str | None = None
    """collective of torch in which that error was raised"""
    ended_parameters: tuple[Int64, ...] = ()
    """parameters that DDP's error names, as indices in the reducer's order"""
    ended_in_checkpoint: bool = False
    """True if that error was raised in the backward pass of a checkpoint with ``use_reentrant=True``"""
    was_aborted_by_library: bool = False
    """True if a thread that runs no Python code, such as one of gloo's, aborted the process"""
    unusual_collective: UnusualCollective | None = None
    """collective that only the last step of a failed rank had, if any"""
    unaveraged: tuple[UnaveragedParameters, ...] = ()
    host_reads: tuple[HostRead, ...] = ()
    """where the training thread waited for its accelerator in profiled steps, longest waits first"""
    optimizers: tuple[OptimizerFacts, ...] | None = None
    """optimizers that have taken steps; ``None`` in records of an older ddpprof"""
    core_list: str | None = None
    """numbers of the cores that the process may use, separated by commas"""
    cpu_quota: float | None = None
    """total number of cores whose time its control group may use; ``None`` if there is no such limit"""
    links: LinkFacts | None = None
    """links of its machine to other ranks; ``None`` in records of an older ddpprof"""

    def parameters_in_error(self, modules: Sequence[DdpModule]) -> tuple[str, ...]:
        """Return the names of the parameters in DDP's error; none if it may be about any of several modules."""
        if len(modules) != 1 or not all(0 <= index < len(modules[0].parameters) for index in self.ended_parameters):
            return ()
        return tuple(modules[0].parameters[index].name for index in self.ended_parameters)

    @property
    def training_steps(self) -> tuple[RecordedStep, ...]:
        """Recorded steps, without those that only serve for comparison."""
        return tuple(step for step in self.steps_to_replay if step.mode is not StepMode.ALONE)

    @property
    def steps_to_replay(self) -> tuple[RecordedStep, ...]:
        """Training steps, and the steps that measure how long computation takes on its own."""
        return tuple(step for step in self.steps if step.mode not in (StepMode.BASELINE, StepMode.CUT))
