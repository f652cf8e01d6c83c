"""When does the backward pass end, if its gradients are sent in these buckets over this link?

    computation   runs at full speed while nothing is sent; what is sent takes `Link.stolen_ns_per_byte` of its time
    bucket        is launched once its last gradient is there and all buckets before it are launched
    transfer      starts as soon as one of the backend's `Link.at_once` workers is free, waits for the latency, and
                  then shares the link's rate equally with the other transfers

Transfers have what they need of the processor, up to half of it; where they need more, both go slower. Times are
nanoseconds since the step began. What DDP does once all buckets are there is not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

_MOST_STOLEN = 0.5


@dataclass(frozen=True, slots=True)
class Link:
    latency_ns: float
    ns_per_byte: float
    """of a bucket alone on the link: of an all-reduce among so many ranks, not of the wire"""
    at_once: int = 1
    """transfers: NCCL does one after the other, gloo with its two threads two"""
    stolen_ns_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Bucket:
    computed_ns: float
    """when its last gradient would be there if nothing were sent"""
    num_bytes: float


@dataclass(frozen=True, slots=True)
class SentBucket:
    launched_ns: float
    started_ns: float
    finished_ns: float


@dataclass(frozen=True, slots=True)
class Replayed:
    buckets: tuple[SentBucket, ...]
    """in the order of launch"""
    computed_ns: float
    """end of computation"""

    @property
    def end_ns(self) -> float:
        return max([self.computed_ns, *(bucket.finished_ns for bucket in self.buckets)])


def replay(buckets: Sequence[Bucket], computed_ns: float, link: Link) -> Replayed:
    """`buckets`: in the order of launch. `computed_ns`: end of the backward pass if nothing were sent."""
    state = _State(buckets, computed_ns, link)
    while not state.is_over:
        state.advance()
    return Replayed(tuple(map(SentBucket, state.launched, state.started, state.finished)), state.computed_at)


class _State:
    def __init__(self, buckets: Sequence[Bucket], computed_ns: float, link: Link) -> None:
        self._buckets, self._computed_ns, self._link = buckets, computed_ns, link
        self._now = self._done = 0.0
        """and how much of the computation is done"""
        self.launched: list[float] = []
        self.started: list[float] = []
        self.finished = [inf] * len(buckets)
        self.computed_at = inf
        self._waits: dict[int, float] = {}
        """latency that is left of each transfer that has begun"""
        self._left: dict[int, float] = {}
        """bytes that are left of each that is sent"""
        self._settle()

    @property
    def is_over(self) -> bool:
        return self.computed_at < inf and inf not in self.finished

    def advance(self) -> None:
        """To the next moment at which anything changes."""
        speed, rate = self._speeds()
        step = min(
            (self._goal - self._done) / speed if self.computed_at == inf else inf,
            min(self._waits.values(), default=inf),
            min(self._left.values(), default=inf) / rate if self._left else inf,
        )
        self._now += step
        self._done += step * speed
        self._waits = {index: wait - step for index, wait in self._waits.items()}
        self._left = {index: left - step * rate for index, left in self._left.items()}
        self._settle()

    @property
    def _goal(self) -> float:
        """Of the computation: the next bucket, or its end."""
        launched = len(self.launched)
        return self._buckets[launched].computed_ns if launched < len(self._buckets) else self._computed_ns

    def _speeds(self) -> tuple[float, float]:
        """Of the computation, and bytes per ns of each transfer."""
        if not self._left:
            return 1.0, 0.0
        rate = 1 / self._link.ns_per_byte / len(self._left)
        wanted = self._link.stolen_ns_per_byte / self._link.ns_per_byte
        if self.computed_at < inf or not wanted:
            return 1.0, rate
        stolen = min(wanted, _MOST_STOLEN)
        return 1 - stolen, rate * stolen / wanted

    def _settle(self) -> None:
        """Whatever is due now happens."""
        for index in [index for index, left in self._left.items() if left <= _NOTHING]:
            del self._left[index]
            self.finished[index] = self._now
        for index in [index for index, wait in self._waits.items() if wait <= _NOTHING]:
            del self._waits[index]
            self._left[index] = self._buckets[index].num_bytes
        while len(self.launched) < len(self._buckets) and self._goal <= self._done + _NOTHING:
            self.launched.append(self._now)
        if len(self.launched) == len(self._buckets) and self._computed_ns <= self._done + _NOTHING:
            self.computed_at = min(self.computed_at, self._now)
        while len(self.started) < len(self.launched) and len(self._waits) + len(self._left) < self._link.at_once:
            self._waits[len(self.started)] = self._link.latency_ns
            self.started.append(self._now)


_NOTHING = 1e-3
"""of a nanosecond or a byte: less than rounding leaves"""
