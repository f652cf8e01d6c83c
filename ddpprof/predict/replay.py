"""Simulate the backward pass of a step that sends its gradients in given buckets over a given link.

    computation   runs at full speed while nothing is sent; communication slows it down (`Link.taken`)
    bucket        is launched once its last gradient is ready and all previous buckets have been launched
    transfer      starts as soon as fewer than `Link.at_once` transfers are running, and shares the link equally with
                  other transfers; during computation, it may take longer (`Link.busy`)
    finalization  after the last gradient, DDP processes the buckets in order: it waits for the bucket, and then needs
                  `Bucket.copied_ns`, for example to copy it to the gradients

Times are in nanoseconds since the start of the step.

`Training` is the recorded training, reduced to the data that predictions need.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from ddpprof.errors import DdpprofError
from ddpprof.model.ddp_module import Buckets, Caps, Gradient, final_buckets, rebuilds_buckets

_TAKEN_WITH_TIME = 0.4
"""share of a transfer's slowdown of computation that is proportional to the transfer's duration; the rest is
proportional to its size. Measured with netbench for gloo with 2 and 4 ranks at 0.5 to 4 Gbit/s
"""
_LEAST_SPEED = 0.1
"""computation continues during communication at this fraction of its full speed or faster"""


@dataclass(frozen=True, slots=True)
class Cost:
    """A time as a linear function of the number of bytes, with a minimum."""

    constant_ns: float = 0.0
    ns_per_byte: float = 0.0
    floor_ns: float = 0.0
    """smallest possible time, which applies to small sizes"""

    def ns(self, num_bytes: float) -> float:
        return max(self.constant_ns + self.ns_per_byte * num_bytes, self.floor_ns)

    def scaled(self, constants: float, rates: float) -> Cost:
        return Cost(self.constant_ns * constants, self.ns_per_byte * rates, self.floor_ns * constants)


NOTHING = Cost()


@dataclass(frozen=True, slots=True)
class Link:
    """The costs of an all-reduce among the ranks; not a physical link."""

    alone: Cost
    """duration of the all-reduce of a bucket if there are no concurrent transfers or computation"""
    busy: Cost = NOTHING
    """duration of the all-reduce of a bucket during computation, if longer than `alone`"""
    taken: Cost = NOTHING
    """computation time that is lost to a concurrent transfer"""
    at_once: int = 1
    """number of transfers that run at the same time: one with NCCL, two with gloo, which has two threads"""

    def taken_at(self, ns_per_byte: float) -> Cost:
        """Return the cost to computation on a link with a different bandwidth."""
        longer = ns_per_byte / self.alone.ns_per_byte if self.alone.ns_per_byte else 1.0
        return replace(self.taken, ns_per_byte=self.taken.ns_per_byte * (1 + _TAKEN_WITH_TIME * (longer - 1)))

    def lasts_ns(self, num_bytes: float, beside_computation: bool) -> float:
        alone_ns = max(self.alone.ns(num_bytes), _NOTHING)
        return max(alone_ns, self.busy.ns(num_bytes)) if beside_computation else alone_ns


@dataclass(frozen=True, slots=True)
class Bucket:
    computed_ns: float
    """time at which the bucket's last gradient would be ready without communication"""
    num_bytes: float
    copied_ns: float = 0.0
    """time to copy the bucket after its all-reduce"""


@dataclass(frozen=True, slots=True)
class SentBucket:
    launched_ns: float
    started_ns: float
    finished_ns: float


@dataclass(frozen=True, slots=True)
class Replayed:
    buckets: tuple[SentBucket, ...]
    """buckets in launch order"""
    computed_ns: float
    """end of the backward pass's computation"""
    end_ns: float
    """end of the step's reduction, when all buckets have been copied"""


def replay(buckets: Sequence[Bucket], computed_ns: float, link: Link) -> Replayed:
    """Replay the buckets, given in launch order. `computed_ns`: end of the backward pass without communication."""
    state = _State(buckets, computed_ns, link)
    while not state.is_over:
        state.advance()
    sent = tuple(map(SentBucket, state.launched, state.started, state.finished))
    return Replayed(sent, state.computed_at, state.now)


@dataclass(slots=True)
class _Task:
    """A part of the computation."""

    left_ns: float
    awaited: int | None = None
    """index of the bucket whose all-reduce must have finished before the task begins"""


class _State:
    def __init__(self, buckets: Sequence[Bucket], computed_ns: float, link: Link) -> None:
        self._buckets, self._link = buckets, link
        self.now = 0.0
        self.launched: list[float] = []
        self.started: list[float] = []
        self.finished = [inf] * len(buckets)
        self.computed_at = inf
        self._tasks = _tasks(buckets, computed_ns)
        self._next = 0
        """index of the current task. The tasks are, in order: one for each bucket, ending with its launch; the rest of
        the backward pass; and the copy of each bucket
        """
        self._left: dict[int, float] = {}
        """bucket that is being sent → fraction of it that remains to be sent"""
        self._settle()

    @property
    def is_over(self) -> bool:
        return self._next == len(self._tasks)

    def advance(self) -> None:
        """Advance to the next event."""
        speed, rates = self._speeds()
        step = min(
            self._tasks[self._next].left_ns / speed if speed else inf,
            min((left / rates[index] for index, left in self._left.items()), default=inf),
        )
        self.now += step
        self._tasks[self._next].left_ns -= step * speed
        self._left = {index: left - step * rates[index] for index, left in self._left.items()}
        self._settle()

    def _is_held_back(self) -> bool:
        awaited = self._tasks[self._next].awaited
        return awaited is not None and self.finished[awaited] == inf

    def _speeds(self) -> tuple[float, dict[int, float]]:
        """Return the relative speed of computation, and the fraction of each transfer that is sent per nanosecond."""
        computes, sharing = not self._is_held_back(), len(self._left)
        sizes = {index: self._buckets[index].num_bytes for index in self._left}
        lasts_ns = {index: self._link.lasts_ns(size, computes) for index, size in sizes.items()}
        rates = {index: 1 / ns / sharing for index, ns in lasts_ns.items()}
        if not computes:
            return 0.0, rates
        taken = sum(rates[index] * self._link.taken.ns(size) for index, size in sizes.items())
        return max(1 - taken, _LEAST_SPEED), rates

    def _settle(self) -> None:
        """Process all events that are due now."""
        for index in [index for index, left in self._left.items() if left <= _NOTHING_LEFT]:
            del self._left[index]
            self.finished[index] = self.now
        while not self.is_over and self._tasks[self._next].left_ns <= _NOTHING and not self._is_held_back():
            self._end_task()
        while len(self.started) < len(self.launched) and len(self._left) < self._link.at_once:
            self._left[len(self.started)] = 1.0
            self.started.append(self.now)

    def _end_task(self) -> None:
        if self._next < len(self._buckets):
            self.launched.append(self.now)
        elif self._next == len(self._buckets):
            self.computed_at = self.now
        self._next += 1


def _tasks(buckets: Sequence[Bucket], computed_ns: float) -> list[_Task]:
    tasks, reached_ns = [], 0.0
    for until_ns in (*(bucket.computed_ns for bucket in buckets), computed_ns):
        tasks.append(_Task(max(0.0, until_ns - reached_ns)))
        reached_ns = max(reached_ns, until_ns)
    return [*tasks, *(_Task(bucket.copied_ns, index) for index, bucket in enumerate(buckets))]


_NOTHING = 1e-3
"""a remaining time below this, in ns, is a rounding error"""
_NOTHING_LEFT = 1e-9
"""a remaining fraction of a bucket below this is a rounding error"""


Times = Sequence[float | None]
"""time of each gradient in ns since the start of the step; ``None`` if a parameter has no gradient"""


@dataclass(frozen=True, slots=True)
class Computed:
    """The computation of a step without communication. Times are in ns since the start of the step."""

    forward_end_ns: float
    """end of the last forward pass"""
    gradients_ns: tuple[float | None, ...]
    end_ns: float
    """end of the backward pass's computation"""

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
    """The gradients reduced in one backward pass through one DDP module, or through several modules in sequence."""

    gradients: tuple[Gradient, ...]
    buckets: Buckets
    """buckets of each module in launch order"""
    caps: Caps
    """caps from which the buckets of the first module were built"""
    world_size: int
    backend: str
    on_cpu: bool
    crosses_hosts: bool = False
    round_trip_ns: int | None = None
    """round trip of a short message between two ranks; ``None`` if unknown"""
    knows_parameters: bool = True
    """``False`` if each of `gradients` stands for a whole bucket from a trace, whose parameters are unknown"""
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    comm_hook: str | None = None
    modules: tuple[int, ...] = (0,)
    """indices of the DDP modules that the backward pass goes through"""
    further_modules_at: tuple[int, ...] = ()
    """for each module after the first: index of its first gradient in `gradients`"""
    further_caps: tuple[Caps, ...] = ()
    """for each module after the first: caps from which its buckets were built"""

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        return tuple(sum(self.gradients[index].num_bytes for index in bucket) for bucket in self.buckets)

    @property
    def bucket_bytes_by_module(self) -> dict[int, tuple[int, ...]]:
        """Bucket sizes of each module."""
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
        """Return the launch time of each bucket: the time at which it and all previous buckets of its module are ready.

        A bucket without gradients is launched together with the previous bucket.
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
        """Return the buckets for a replay, each with its launch time as `computed_ns`."""
        return [Bucket(*pair) for pair in zip(self.launches(ready_ns), self.bucket_bytes, strict=True)]

    def replay(self, computed: Computed, link: Link, copied_ns_per_byte: float, sent_share: float = 1.0) -> Replayed:
        """Replay the training. `sent_share`: fraction of the bytes that is sent over the link."""
        rows = [
            Bucket(one.computed_ns, one.num_bytes * sent_share, copied_ns_per_byte * one.num_bytes)
            for one in self.sent_when(computed.gradients_ns)
        ]
        return replay_in_turn(rows, computed.end_ns, link)

    def remade(self, caps: Caps | None, ready_order: Sequence[int]) -> Buckets:
        """Return the buckets that DDP would build if gradients became ready in this order.

        `caps`: caps of all modules; ``None`` for their current caps.
        """
        firsts, own_caps = (0, *self.further_modules_at), (self.caps, *self.further_caps)
        made: list[tuple[int, ...]] = []
        for first, end, own in zip(firsts, (*self.further_modules_at, len(self.gradients)), own_caps, strict=True):
            order = [index - first for index in ready_order if first <= index < end]
            of_module = final_buckets(self.gradients[first:end], caps or own, order, rebuilt=self.is_rebuilt)
            made += (tuple(first + index for index in bucket) for bucket in of_module)
        return tuple(made)


def joint(trainings: Sequence[Training]) -> Training:
    """Join the `Training` objects of the modules in one backward pass.

    Raises `DdpprofError` if their settings differ.
    """
    firsts = list(accumulate((len(one.gradients) for one in trainings), initial=0))
    common = {replace(one, gradients=(), buckets=(), modules=(), caps=Caps()) for one in trainings}
    if len(common) > 1:
        raise DdpprofError("a backward pass that goes through DDP modules with different settings cannot be replayed.")
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
    """Replay buckets that are launched as soon as they are ready. The result is in the order of the input."""
    order = sorted(range(len(buckets)), key=lambda index: buckets[index].computed_ns)
    replayed = replay([buckets[index] for index in order], computed_ns, link)
    by_index = dict(zip(order, replayed.buckets, strict=True))
    return replace(replayed, buckets=tuple(by_index[index] for index in range(len(buckets))))
