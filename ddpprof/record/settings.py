"""What to record, and how it reaches the training processes: one environment variable."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENVIRONMENT_VARIABLE = "DDPPROF_SETTINGS"


@dataclass(frozen=True)
class Settings:
    """Every choice of ``ddpprof trace`` and `ddpprof.profile` about recording."""

    out: str
    """the run directory"""
    command: tuple[str, ...] = ()
    """what the user asked to run"""
    recorded_with: tuple[str, ...] = ()
    """words behind ``ddpprof trace`` that record such a run again: all but those that say where it goes"""
    skip_first: int = 3
    """steps left alone at first: DDP rebuilds its buckets at the second forward, caches and allocators warm up"""
    cost_steps: int = 8
    """steps with recording alternately off and on, from which ddpprof measures its own cost"""
    timed_steps: int = 0
    """then steps with recording off, of which only the length is kept"""
    warmup: int = 1
    """steps with the profiler on whose trace is thrown away"""
    steps: int = 5
    """steps with the profiler on (or with light recording, with ``profiler=False``)"""
    profile_ranks: tuple[tuple[int, int], ...] = ()
    """first and last of each span of ranks to profile; empty: all, or in a large job some"""
    baseline_steps: int = 0
    """then steps under the profiler without gradient communication, which end the job: the ranks drift apart"""
    alone_steps: int = 0
    """then such steps without the profiler: how long computation takes alone"""
    profiler: bool = True
    """``False``: light recording only"""
    record_shapes: bool = False
    with_stack: bool = False
    profile_memory: bool = False
    most_seconds: float = 300.0
    """after which the profiled steps end, however many there were"""
    most_bytes: int = 2 << 30
    """by which the process may grow in the profiled steps before they end"""
    stop_after: bool = False
    """end the job, with exit code 0, once the steps are recorded"""
    force: bool = False
    """replace an earlier run in ``out``"""
    trial: bool = False
    """one of several short runs of an experiment: `torch.save` to a path writes nothing once training has begun"""
    ddp: Mapping[str, Any] = field(default_factory=dict)
    """arguments of DDP's constructor that replace the script's"""
    comm_hook: str | None = None
    """of ``torch.distributed.algorithms.ddp_comm_hooks.default_hooks``, registered with every DDP module"""
    losses: bool = False
    """keep what each step is trained for"""
    without_ddp: bool = False
    """DDP does nothing but call its module"""
    ddp_blocks: int = 0
    """at the end, so often: a block of timed steps with DDP, and one without"""
    block_steps: int = 0
    """timed steps of a block"""

    launched_unix_s: float | None = None
    """when the launcher started the job; what was recorded later is the job's own"""
    agent: str | None = None
    """of torchrun, where ddpprof stands between it and the rank"""

    @property
    def reduces_throughout(self) -> bool:
        """Whether DDP works in all recorded steps as the script has it."""
        return not (self.baseline_steps or self.alone_steps or self.ddp_blocks or self.without_ddp)

    def to_environment(self) -> dict[str, str]:
        return {ENVIRONMENT_VARIABLE: json.dumps(dataclasses.asdict(self))}


def settings_from_environment() -> Settings | None:
    """The launcher's settings, or ``None`` in a process that it did not start."""
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    if not text:
        return None
    values = json.loads(text)
    for name in ("command", "recorded_with"):
        values[name] = tuple(values[name])
    values["profile_ranks"] = tuple((first, last) for first, last in values["profile_ranks"])
    return Settings(**values)
