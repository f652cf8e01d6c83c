"""Settings of the recording. They are passed to the training processes in one environment variable."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpprof.ranks_and_steps import COST_STEPS, REBUILT, SKIP_FIRST, STEPS, WARMUP

if TYPE_CHECKING:
    from ddpprof.model.json_files import CaptureRequest

ENVIRONMENT_VARIABLE = "DDPPROF_SETTINGS"
WATCHING: dict[str, Any] = {"skip_first": REBUILT, "cost_steps": 0, "warmup": 0, "steps": 0, "profiler": False}
"""settings with which only the pulse is recorded"""


@dataclass(frozen=True, repr=False)  # created in every process that imports torch, so it must be fast to create
class Settings:
    """All recording options of ``ddpprof trace`` and `ddpprof.profile`."""

    out: str
    """run directory"""
    command: tuple[str, ...] = ()
    """command that the user asked to run"""
    recorded_with: tuple[str, ...] = ()
    """arguments of ``ddpprof trace`` with which the recording can be repeated, except the output directory"""
    skip_first: int = SKIP_FIRST
    """number of initial steps that are not recorded; in them, DDP rebuilds its buckets, and caches and allocators warm
    up
    """
    cost_steps: int = COST_STEPS
    """number of steps for measuring ddpprof's overhead; recording is off in half of them, and light in the
    other half
    """
    timed_steps: int = 0
    """number of steps after `cost_steps` in which recording is off; only their duration is recorded"""
    warmup: int = WARMUP
    """number of steps in which the profiler warms up; their trace is discarded"""
    steps: int = STEPS
    """number of profiled steps or, if ``profiler=False``, of steps with light recording"""
    profile_ranks: tuple[tuple[int, int], ...] = ()
    """first and last rank of each span of ranks to profile; if empty, all ranks or, in a large job, a sample of the
    ranks
    """
    baseline_steps: int = 0
    """number of profiled steps without gradient communication, after `steps`. The job ends after them, because the
    ranks diverge
    """
    alone_steps: int = 0
    """number of steps without profiler or gradient communication, after `baseline_steps`, to measure how long
    computation takes alone
    """
    profiler: bool = True
    """``False`` to use light recording instead of the profiler"""
    record_shapes: bool = False
    with_stack: bool = False
    profile_memory: bool = False
    most_seconds: float = 300.0
    """profiling ends after this many seconds, even if fewer steps than requested have been profiled"""
    most_bytes: int = 2 << 30
    """profiling ends if the process's memory has grown by this many bytes"""
    stop_after: bool = False
    """whether to end the job with exit code 0 after the recorded steps"""
    force: bool = False
    """whether to replace an earlier run in the directory `out`"""
    trial: bool = False
    """True if the run is one of several short runs of an experiment; ``torch.save`` then writes no files after
    step 0
    """
    ddp: Mapping[str, Any] = field(default_factory=dict)
    """arguments of DDP's constructor that replace the script's arguments"""
    comm_hook: str | None = None
    """comm hook from ``torch.distributed.algorithms.ddp_comm_hooks.default_hooks`` to register with every DDP module"""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """arguments of every `DataLoader`'s constructor that replace the script's arguments"""
    passes_per_reduction: int = 0
    """if not 0, number of backward passes per step, of which only the last reduces gradients, as with ``no_sync``"""
    nccl_log: bool = False
    """whether NCCL writes a log into the run directory"""
    optimize_ddp: str | None = None
    """value to which ``torch._dynamo.config.optimize_ddp`` is set when the script constructs DDP"""
    compile_order: str | None = None
    """order in which DDP and torch.compile wrap the model: ``"ddp_first"`` or ``"model_first"``"""
    switches: Mapping[str, bool] = field(default_factory=dict)
    """``sync_batch_norm: False`` makes SyncBatchNorm layers compute statistics per rank, as BatchNorm does;
    ``sparse_embeddings: True`` makes embeddings compute sparse gradients; ``detect_anomaly: False`` prevents the script
    from turning on autograd's anomaly detection, and ``comm_hook: False`` from registering comm hooks
    """
    num_threads: int = 0
    """if not 0, number of threads that ``torch.set_num_threads`` sets, whatever argument the script passes"""
    pulse: bool = True
    """whether to record the rank's activity in every step of the run, for ``ddpprof top``, ``diagnose`` and reports"""
    losses: bool = False
    """whether to record the loss of each step"""
    without_ddp: bool = False
    """whether DDP calls its module without averaging gradients"""
    ddp_blocks: int = 0
    """number of pairs of blocks at the end of the run. A pair is a block of timed steps with DDP and a block without
    DDP
    """
    block_steps: int = 0
    """number of timed steps in each block"""

    launched_unix_s: float | None = None
    """time at which the launcher started the job; the ranks use it to recognize the run of this job"""
    agent: str | None = None
    """identifier of the torchrun process, if torchrun starts ddpprof and ddpprof starts the rank"""

    @property
    def reduces_throughout(self) -> bool:
        """Whether DDP averages gradients in all recorded steps: no setting disables it in any of them."""
        return not (self.baseline_steps or self.alone_steps or self.ddp_blocks or self.without_ddp)

    @classmethod
    def to_watch(cls, out: str, **others: Any) -> Settings:
        """Return settings that record only the pulse."""
        return cls(out, **WATCHING, **others)

    def to_capture(self, request: CaptureRequest, folder: Path, first_step: int) -> Settings:
        """Return the settings of a capture: it records only the requested steps, starting with `first_step`."""
        return Settings(
            out=str(folder),
            command=self.command,
            recorded_with=self.recorded_with,
            skip_first=first_step,
            cost_steps=0,
            warmup=0,
            steps=request.steps,
            profile_ranks=self.profile_ranks,
            profiler=request.profiler,
            record_shapes=request.record_shapes,
            with_stack=request.with_stack,
            profile_memory=request.profile_memory,
            most_seconds=self.most_seconds,
            most_bytes=self.most_bytes,
        )

    def to_environment(self) -> dict[str, str]:
        return {ENVIRONMENT_VARIABLE: json.dumps(dataclasses.asdict(self))}


def settings_from_environment() -> Settings | None:
    """Return the launcher's settings; ``None`` in a process that the launcher did not start."""
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    if not text:
        return None
    import msgspec  # not needed by `ddpprof --help`

    return msgspec.convert(json.loads(text), Settings)
