"""A Horovod timeline: what rank 0 wrote of every collective of every tensor. Times are ns since the timeline began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ddpprof.model.tables import CollectiveKind

HOROVOD_TIMELINE = "Horovod timeline"
"""in messages and in the report"""


class ActivityKind(IntEnum):
    """What Horovod does with a tensor once all ranks have it."""

    OTHER = 0
    """the first use of a communicator or of the fusion buffer, allocation of outputs, unknown names"""
    QUEUE = 1
    """on an accelerator: waits for its stream, or for the data of tensors in the same collective"""
    COPY_IN = 2
    COLLECTIVE = 3
    COPY_OUT = 4


@dataclass(frozen=True, slots=True)
class Activity:
    kind: ActivityKind
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class TensorOp:
    """One collective of one tensor."""

    tensor: str
    kind: CollectiveKind
    group: int
    """the same for tensors that were fused into one collective"""
    negotiated_from_ns: int | None
    """rank 0 has the tensor (or, where ``ready_ns`` says, the first rank has); ``None``: begun before the timeline"""
    negotiated_ns: int | None
    """all ranks have it"""
    start_ns: int
    end_ns: int
    activities: tuple[Activity, ...]
    num_bytes: int | None
    """of its output"""
    ready_ns: Mapping[int, int] = field(default_factory=dict)
    """rank → when rank 0 learnt that it has the tensor; empty where Horovod answered from its cache"""


@dataclass(frozen=True, slots=True)
class HorovodTimeline:
    backend: str | None
    """``gloo``, ``nccl``, ``mpi`` or ``ccl``"""
    world_size: int | None
    ops: tuple[TensorOp, ...]
    """in the order of their starts"""
    cycles_ns: tuple[int, ...]
    """when Horovod looked for tensors that are ready; empty without ``HOROVOD_TIMELINE_MARK_CYCLES``"""
    notes: tuple[str, ...] = ()
