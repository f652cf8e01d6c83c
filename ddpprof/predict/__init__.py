"""Settings to predict, and the bucket caps that DDP accepts and that are worth trying.

There is one cap for all buckets, optionally with a smaller cap for the first bucket (so that communication starts
earlier), for the last bucket (so that less is sent after computation has ended), or for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, product
from math import ceil, log2

from ddpprof.model.backends import Compression
from ddpprof.model.ddp_module import DEFAULT_CAP_MIB, MIB, Caps, Gradient

_ENDS_MB = (0.25, 1, 4)
_MOST_LISTED = 16
"""maximum number of caps in a list that ddpprof suggests for a script"""
_MANY = 4
"""at least this many equal caps in a row are written as a product, such as ``[25] * 4``"""


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """Bucket caps as DDP's arguments: a list overrides a cap. Without a list or a cap, DDP's defaults apply."""

    cap_mb: float | None = None
    list_mb: tuple[float, ...] = ()
    """cap of each bucket in order, in MiB; the last cap applies to all further buckets"""

    @property
    def caps(self) -> Caps:
        return Caps.of(self.cap_mb, self.list_mb)

    @property
    def argument(self) -> str:
        """Argument of DDP's constructor as Python code."""
        if self.list_mb:
            return f"bucket_cap_mb_list={as_written(self.list_mb)}"
        return f"bucket_cap_mb={self.cap_mb}" if self.cap_mb is None else f"bucket_cap_mb={self.cap_mb:g}"


@dataclass(frozen=True, slots=True)
class AcceptedCaps:
    """The kinds of caps that a user can pass to DDP."""

    lists: bool = True
    """whether DDP accepts a list with a cap for each bucket"""
    default_cap: bool = True
    """whether DDP accepts 25 MiB as the cap of all buckets; by default, the cap of the first bucket is smaller"""

    def has(self, caps: BucketCaps | None) -> bool:
        """Return True if the caps are accepted. ``None`` means unchanged caps."""
        if caps is None:
            return True
        return self.lists if caps.list_mb else self.default_cap or caps.cap_mb != DEFAULT_CAP_MIB


def accepted_caps(torch: str | None, framework: str | None, is_compiled: bool) -> AcceptedCaps:
    """Return which caps are accepted by this version of PyTorch when used through this framework.

    Lists were added in PyTorch 2.13. Accelerate treats 25 MiB like the default. torch.compile ignores a list: it splits
    the model for DDP by the largest cap.
    """
    version = re.match(r"(\d+)\.(\d+)", torch or "")
    has_lists = version is not None and tuple(map(int, version.groups())) >= (2, 13)
    of_accelerate = framework in ("accelerate", "transformers")
    return AcceptedCaps(has_lists and not of_accelerate and not is_compiled, not of_accelerate)


def as_written(list_mb: Sequence[float]) -> str:
    """Return a list of caps as short Python code."""
    runs = [(f"{cap:g}", len(list(same))) for cap, same in groupby(list_mb)]
    if all(times < _MANY for _, times in runs):
        return f"[{', '.join(cap for cap, times in runs for _ in range(times))}]"
    return " + ".join(f"[{cap}]" if times == 1 else f"[{cap}] * {times}" for cap, times in runs)


def up_to_one_bucket(caps_mb: Sequence[float], gradient_bytes: int) -> Iterator[float]:
    """Yield caps in order, up to the first cap that puts all gradients into one bucket. `caps_mb`: caps, ascending."""
    for cap_mb in caps_mb:
        yield cap_mb
        if cap_mb * MIB >= gradient_bytes:
            return


def with_own_ends(cap_mb: float, num_buckets: int) -> Iterator[BucketCaps]:
    """Yield lists of caps with a smaller first bucket, last bucket, or both.

    `num_buckets`: number of buckets if all have the cap `cap_mb`.
    """
    ends = [end for end in _ENDS_MB if end < cap_mb]
    yield from (BucketCaps(list_mb=(first, cap_mb)) for first in ends)
    if 1 < num_buckets <= _MOST_LISTED:
        up_to_the_last = (cap_mb,) * (num_buckets - 1)
        yield from (BucketCaps(list_mb=(*up_to_the_last, last)) for last in ends)
        yield from (BucketCaps(list_mb=(first, *up_to_the_last, last)) for first, last in product(ends, ends))


class Algorithm(StrEnum):
    """Algorithm of an all-reduce among n ranks."""

    RING = "ring"
    TREE = "tree"
    GATHER = "gather"
    """all ranks send to one rank, and that rank sends the sum to all ranks"""

    def rounds(self, num_ranks: int) -> float:
        """Return the number of sequential messages, which determines the latency."""
        if self is Algorithm.RING:
            return 2 * (num_ranks - 1)
        return 2 * ceil(log2(num_ranks)) if self is Algorithm.TREE else 2

    def bytes_per_byte(self, num_ranks: int) -> float:
        """Return the number of bytes sent over the busiest link, per byte of the message."""
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
    """number of backward passes per step, of which only the last reduces gradients"""
    world_size: int | None = None
    algorithm: Algorithm = Algorithm.RING
    bytes_per_s: float | None = None
    """bandwidth of each rank's link"""
    latency_ns: float | None = None
    """latency of one message between two ranks, in ns"""


def sent_share(gradients: Sequence[Gradient], compression: Compression | None, rank: int) -> float:
    """Return the fraction of the gradients' bytes that is sent. `rank`: matrix rank of PowerSGD."""
    total = sum(gradient.num_bytes for gradient in gradients)
    if compression is None or not total:
        return 1.0
    if compression is Compression.POWERSGD:
        return sum(_low_rank_bytes(gradient, rank) for gradient in gradients) / total
    return sum(gradient.num_bytes * min(1.0, 2 / gradient.item_bytes) for gradient in gradients) / total


_POWERSGD_LEAST_COMPRESSION = 2
"""default of PyTorch's ``min_compression_rate``: gradients that PowerSGD would compress by less than this are sent
uncompressed
"""


def _low_rank_bytes(gradient: Gradient, rank: int) -> float:
    rows = gradient.shape[0] if gradient.shape else 1
    columns = gradient.num_bytes / gradient.item_bytes / max(rows, 1)
    if len(gradient.shape) < 2 or (rows + columns) * rank * _POWERSGD_LEAST_COMPRESSION >= rows * columns:
        return gradient.num_bytes
    return (rows + columns) * min(rank, rows, columns) * gradient.item_bytes
