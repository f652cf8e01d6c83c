"""A DDP module as the recorder saw it: settings, parameters, buckets."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ddpprof.model.backends import sends_half, sends_unchanged
from ddpprof.model.int64 import Int64


class Parameter(Struct, frozen=True, array_like=True):
    name: str
    num_bytes: Int64
    dtype: str | None = None
    """such as ``float32``; ``None`` in records of an older ddpprof, which also lack the shape"""
    shape: tuple[Int64, ...] = ()
    is_sparse: bool = False
    """True if its gradient is expected to be sparse"""


class DdpModule(Struct, frozen=True):
    """One ``DistributedDataParallel`` instance, as the recorder saw it."""

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
    num_buffers_of_batch_norms: Int64 | None = None
    """number of these buffers; ``None`` in records of an older ddpprof"""
    unused: tuple[str, ...] | None = None
    """parameters without gradient in every examined backward pass; ``None`` if none was examined"""
    graph_is_static: bool | None = None
    """torch's ``can_set_static_graph``"""
    num_searched_passes: Int64 = 0
    """number of backward passes examined for unused parameters"""
    num_lacking_passes: Int64 | None = None
    """number of these passes that left any parameter without gradient; ``None`` if not recorded"""

    @property
    def bucket_cap_mb(self) -> float | None:
        """Cap of its buckets in MiB, including torch's default; ``None`` if not recorded."""
        cap = self.settings.get("bucket_cap_mb")
        return float(cap) if isinstance(cap, int | float) else None

    def message_bytes(self, bucket: int) -> int | None:
        """Return the size of a bucket's all-reduce in bytes; ``None`` if unknown because of the module's comm hook."""
        num_bytes = self.bucket_bytes(bucket)
        if sends_unchanged(self.comm_hook) or num_bytes is None:
            return num_bytes
        dtypes = {self.parameters[index].dtype for index in self.buckets[bucket]}
        return num_bytes // 2 if sends_half(self.comm_hook) and dtypes == {"float32"} else None

    def bucket_bytes(self, bucket: int) -> int | None:
        """Return the size of a bucket in bytes; ``None`` with sparse gradients, of which only some rows are sent."""
        parameters = [self.parameters[index] for index in self.buckets[bucket]]
        return None if any(one.is_sparse for one in parameters) else sum(one.num_bytes for one in parameters)
