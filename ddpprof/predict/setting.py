"""What the user asks for: options of DDP or the cluster; ``None`` leaves one as recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2

from ddpprof.model.bucket_assignment import Gradient
from ddpprof.model.comm_hooks import Compression
from ddpprof.predict.caps import BucketCaps


class Algorithm(StrEnum):
    """Algorithm of an all-reduce among n ranks. Rounds determine latency; bytes are those carried by one link."""

    RING = "ring"
    TREE = "tree"
    GATHER = "gather"
    """all ranks send to one rank, which sends the sum to all"""

    def rounds(self, num_ranks: int) -> float:
        if self is Algorithm.RING:
            return 2 * (num_ranks - 1)
        return 2 * ceil(log2(num_ranks)) if self is Algorithm.TREE else 2

    def bytes_per_byte(self, num_ranks: int) -> float:
        if self is Algorithm.RING:
            return 2 * (num_ranks - 1) / num_ranks
        return 2 if self is Algorithm.TREE else 2 * (num_ranks - 1)


@dataclass(frozen=True, slots=True)
class Setting:
    buckets: BucketCaps | None = None
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    compression: Compression | None = None
    powersgd_rank: int = 1
    overlaps: bool = True
    batch_scale: float = 1.0
    accumulation: int | None = None
    """number of backward passes in a step, of which only the last is reduced"""
    world_size: int | None = None
    algorithm: Algorithm = Algorithm.RING
    bytes_per_s: float | None = None
    """bandwidth of each rank's link"""
    latency_ns: float | None = None
    """latency of one message between two ranks"""


def sent_share(gradients: Sequence[Gradient], compression: Compression | None, rank: int) -> float:
    """Return the share of the bytes of all gradients that a hook sends."""
    total = sum(gradient.num_bytes for gradient in gradients)
    if compression is None or not total:
        return 1.0
    if compression is Compression.POWERSGD:
        return sum(_low_rank_bytes(gradient, rank) for gradient in gradients) / total
    return sum(gradient.num_bytes * min(1.0, 2 / gradient.item_bytes) for gradient in gradients) / total


_POWERSGD_LEAST_COMPRESSION = 2
"""torch's ``min_compression_rate``; gradients that would shrink by less are sent uncompressed"""


def _low_rank_bytes(gradient: Gradient, rank: int) -> float:
    rows = gradient.shape[0] if gradient.shape else 1
    columns = gradient.num_bytes / gradient.item_bytes / max(rows, 1)
    if len(gradient.shape) < 2 or (rows + columns) * rank * _POWERSGD_LEAST_COMPRESSION >= rows * columns:
        return gradient.num_bytes
    return (rows + columns) * min(rank, rows, columns) * gradient.item_bytes
