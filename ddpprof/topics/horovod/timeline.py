"""A Horovod timeline: what rank 0 wrote about every collective of every tensor.

Times are ns since the timeline began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ddpprof.model.tables import CollectiveKind

HOROVOD_TIMELINE = "Horovod timeline"
"""name in messages and in the report"""


class ActivityKind(IntEnum):
    """Work of Horovod on a tensor that all ranks have."""

    OTHER = 0
    """first use of a communicator or of the fusion buffer, allocation of outputs, unknown names"""
    QUEUE = 1
    """waiting for an accelerator's stream, or for the data of tensors in the same collective"""
    COPY_IN = 2
    COLLECTIVE = 3
    COPY_OUT = 4


@dataclass(frozen=True, slots=True)
class TimelineActivity:
    kind: ActivityKind
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class TensorOp:
    """One collective of one tensor."""

    tensor: str
    kind: CollectiveKind
    group: int
    """number shared by tensors that were fused into one collective"""
    negotiated_from_ns: int | None
    """time at which rank 0 (by ``ready_ns``, the first rank) had the tensor; ``None`` if that was before the timeline
    began"""
    negotiated_ns: int | None
    """time at which all ranks had it"""
    start_ns: int
    end_ns: int
    activities: tuple[TimelineActivity, ...]
    num_bytes: int | None
    """size of its output"""
    ready_ns: Mapping[int, int] = field(default_factory=dict)
    """rank → time at which rank 0 learned that this rank has the tensor; empty if Horovod answered from its cache"""


@dataclass(frozen=True, slots=True)
class HorovodTimeline:
    backend: str | None
    """``gloo``, ``nccl``, ``mpi`` or ``ccl``"""
    world_size: int | None
    ops: tuple[TensorOp, ...]
    """in the order of their starts"""
    cycles_ns: tuple[int, ...]
    """times at which Horovod checked for ready tensors; empty without ``HOROVOD_TIMELINE_MARK_CYCLES``"""
    notes: tuple[str, ...] = ()
