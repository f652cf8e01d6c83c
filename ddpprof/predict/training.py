"""The recorded training, reduced to what predictions need."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ddpprof.errors import DdpprofError
from ddpprof.model.ddp_module import Buckets, Caps, Gradient, final_buckets, rebuilds_buckets
from ddpprof.predict.replay import Bucket, Link, Replayed, replay

Times = Sequence[float | None]
"""time of each gradient, ns since the step began; ``None`` if it has none"""


@dataclass(frozen=True, slots=True)
class Computed:
    """The computation without communication, ns since the step began."""

    forward_end_ns: float
    """end of the last forward"""
    gradients_ns: tuple[float | None, ...]
    end_ns: float
    """end of the backward pass"""

    def ending_at(self, end_ns: float) -> Computed:
        """Return the computation with its backward pass scaled uniformly to end at `end_ns`."""
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
    """The gradients reduced in one backward pass. They belong to one DDP module, or to several in sequence."""

    gradients: tuple[Gradient, ...]
    buckets: Buckets
    """buckets of each module in launch order"""
    caps: Caps
    """caps with which they were made"""
    world_size: int
    backend: str
    on_cpu: bool
    knows_parameters: bool = True
    """``False`` if each of `gradients` is a whole bucket from a trace, which cannot be divided"""
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    comm_hook: str | None = None
    modules: tuple[int, ...] = (0,)
    """DDP modules that the pass goes through"""
    further_modules_at: tuple[int, ...] = ()
    """index of the first gradient of each module except the first module"""
    further_caps: tuple[Caps, ...] = ()
    """caps with which their buckets were made"""

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        return tuple(sum(self.gradients[index].num_bytes for index in bucket) for bucket in self.buckets)

    @property
    def bucket_bytes_by_module(self) -> dict[int, tuple[int, ...]]:
        """Module → sizes of its buckets."""
        sizes: dict[int, list[int]] = {}
        for bucket, size in zip(self.buckets, self.bucket_bytes, strict=True):
            sizes.setdefault(self.modules[self._place(bucket)], []).append(size)
        return {module: tuple(of_module) for module, of_module in sizes.items()}

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.num_bytes for gradient in self.gradients)

    @property
    def is_rebuilt(self) -> bool:
        return rebuilds_buckets(find_unused_parameters=self.find_unused_parameters, static_graph=self.static_graph)

    def launches(self, ready_ns: Times) -> list[float]:
        """Return the launch time of each bucket: when it and all before it in its module are ready.

        A bucket without gradients is launched at once.
        """
        launches, latest = [], [0.0] * len(self.modules)
        for bucket in self.buckets:
            place = self._place(bucket)
            latest[place] = max([latest[place], *(ns for index in bucket if (ns := ready_ns[index]) is not None)])
            launches.append(latest[place])
        return launches

    def _place(self, bucket: Sequence[int]) -> int:
        """Return the index of the bucket's module in `modules`."""
        return bisect_right(self.further_modules_at, bucket[0])

    def sent_when(self, ready_ns: Times) -> list[Bucket]:
        """Return the buckets, each ready at the time of its launch."""
        return [Bucket(*pair) for pair in zip(self.launches(ready_ns), self.bucket_bytes, strict=True)]

    def replay(self, computed: Computed, link: Link, copied_ns_per_byte: float, sent_share: float = 1.0) -> Replayed:
        """Replay the training. `sent_share`: share of the bytes that is sent over the link."""
        rows = [
            Bucket(one.computed_ns, one.num_bytes * sent_share, copied_ns_per_byte * one.num_bytes)
            for one in self.sent_when(computed.gradients_ns)
        ]
        return replay_in_turn(rows, computed.end_ns, link)

    def remade(self, caps: Caps | None, ready_order: Sequence[int]) -> Buckets:
        """Return the buckets that DDP makes with these caps, or its own, if gradients become ready in this order."""
        firsts, own_caps = (0, *self.further_modules_at), (self.caps, *self.further_caps)
        made: list[tuple[int, ...]] = []
        for first, end, own in zip(firsts, (*self.further_modules_at, len(self.gradients)), own_caps, strict=True):
            order = [index - first for index in ready_order if first <= index < end]
            of_module = final_buckets(self.gradients[first:end], caps or own, order, rebuilt=self.is_rebuilt)
            made += (tuple(first + index for index in bucket) for bucket in of_module)
        return tuple(made)


def joint(trainings: Sequence[Training]) -> Training:
    """Return what a backward pass through several modules reduces. Raises `DdpprofError` if their settings differ."""
    firsts = list(accumulate((len(one.gradients) for one in trainings), initial=0))
    common = {replace(one, gradients=(), buckets=(), modules=(), caps=Caps()) for one in trainings}
    if len(common) > 1:
        raise DdpprofError(
            "a backward pass goes through DDP modules with different settings, which cannot be replayed."
        )
    return replace(
        trainings[0],
        gradients=tuple(gradient for one in trainings for gradient in one.gradients),
        buckets=tuple(
            tuple(first + index for index in bucket)
            for first, one in zip(firsts, trainings, strict=False)
            for bucket in one.buckets
        ),
        modules=tuple(module for one in trainings for module in one.modules),
        further_modules_at=tuple(firsts[1:-1]),
        further_caps=tuple(one.caps for one in trainings[1:]),
    )


def replay_in_turn(buckets: Sequence[Bucket], computed_ns: float, link: Link) -> Replayed:
    """Replay buckets given in any order, each launched as soon as it is ready. Results are in the same order."""
    order = sorted(range(len(buckets)), key=lambda index: buckets[index].computed_ns)
    replayed = replay([buckets[index] for index in order], computed_ns, link)
    by_index = dict(zip(order, replayed.buckets, strict=True))
    return replace(replayed, buckets=tuple(by_index[index] for index in range(len(buckets))))
