"""The recorded training, as far as predictions need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpprof.model.bucket_assignment import Buckets, Caps, Gradient, rebuilds_buckets
from ddpprof.predict.replay import Bucket, Link, Replayed, replay

Times = Sequence[float | None]
"""time of each gradient, ns since the step began; ``None`` if there is none"""


@dataclass(frozen=True, slots=True)
class Computed:
    """The computation without communication, ns since the step began."""

    forward_end_ns: float
    """end of the last forward"""
    gradients_ns: tuple[float | None, ...]
    end_ns: float
    """end of the backward pass"""

    def ending_at(self, end_ns: float) -> Computed:
        """Return the computation with a backward pass that is uniformly longer or shorter."""
        was_ns = self.end_ns - self.forward_end_ns
        factor = (end_ns - self.forward_end_ns) / was_ns if was_ns > 0 else 1.0

        def moved(ns: float) -> float:
            return ns if ns < self.forward_end_ns else self.forward_end_ns + (ns - self.forward_end_ns) * factor

        gradients = (None if one is None else moved(one) for one in self.gradients_ns)
        return Computed(self.forward_end_ns, tuple(gradients), moved(self.end_ns))

    def sooner(self, ns: float) -> Computed:
        gradients = (None if one is None else max(0.0, one - ns) for one in self.gradients_ns)
        return Computed(max(0.0, self.forward_end_ns - ns), tuple(gradients), max(0.0, self.end_ns - ns))


@dataclass(frozen=True, slots=True)
class Training:
    gradients: tuple[Gradient, ...]
    buckets: Buckets
    """buckets in the order of launch"""
    caps: Caps
    """caps by which they were made"""
    world_size: int
    backend: str
    on_cpu: bool
    knows_parameters: bool = True
    """``False`` if each of `gradients` is a whole bucket of a trace, which cannot be divided"""
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    comm_hook: str | None = None

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        return tuple(sum(self.gradients[index].num_bytes for index in bucket) for bucket in self.buckets)

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.num_bytes for gradient in self.gradients)

    @property
    def is_rebuilt(self) -> bool:
        return rebuilds_buckets(find_unused_parameters=self.find_unused_parameters, static_graph=self.static_graph)

    def launches(self, ready_ns: Times) -> list[float]:
        """Return when each bucket is launched: once it and all before it are there; at once, if it has no gradients."""
        launches, latest = [], 0.0
        for bucket in self.buckets:
            latest = max([latest, *(ns for index in bucket if (ns := ready_ns[index]) is not None)])
            launches.append(latest)
        return launches

    def sent_when(self, ready_ns: Times) -> list[Bucket]:
        """Return the buckets, each sent as soon as it may be launched."""
        return [Bucket(*pair) for pair in zip(self.launches(ready_ns), self.bucket_bytes, strict=True)]

    def replay(self, computed: Computed, link: Link, copied_ns_per_byte: float, sent_share: float = 1.0) -> Replayed:
        """Replay the training. `sent_share`: share of the bytes that goes over the link."""
        rows = [
            Bucket(one.computed_ns, one.num_bytes * sent_share, copied_ns_per_byte * one.num_bytes)
            for one in self.sent_when(computed.gradients_ns)
        ]
        return replay(rows, computed.end_ns, link)
