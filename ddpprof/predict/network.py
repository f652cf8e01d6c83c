"""Model how long an all-reduce between the ranks of a job takes, and how much it slows down concurrent computation.

Both are modeled as latency + bytes × time per byte, with a minimum (`statistics.size_model`). The parameters are
fitted to the measurements of `ddpprof netbench` or, without them, to the buckets of the run. The buckets cover only
their own sizes, and do not show the cost to computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from statistics import median

from ddpprof.model.backends import backend_of
from ddpprof.model.json_files import NetBench
from ddpprof.predict.observed_steps import ObservedStep
from ddpprof.predict.replay import NOTHING, Cost, Link, Training, replay_in_turn
from ddpprof.statistics import first_quartile
from ddpprof.statistics.size_model import SizeModel, fit_size_model

_TAKEN_ON_A_LINK = 1.1
"""time that gloo's threads add to computation, in ns per byte; they also add a share of the transfer's duration
(`_TAKEN_WITH_TIME`)
"""
_TAKEN_WITH_TIME = 0.11
_LEAST_OF_LARGEST = 8
"""the time of a bucket depends on latency rather than bandwidth if the largest bucket is more than this many times as
large
"""
_FASTEST, _SLOWEST = 1e-4, 1e4
"""smallest and largest possible time per byte in ns: 10 TB/s and 100 kB/s"""
_NARROWINGS = 25
"""number of times that the search narrows the range from `_FASTEST` to `_SLOWEST`; its accuracy is then 0.02 %"""


@dataclass(frozen=True, slots=True)
class Network:
    link: Link
    world_size: int
    least_bytes: float
    most_bytes: float
    """largest message size that was measured, in bytes"""
    num_sizes: int
    relative_error: float
    """root-mean-square error of the fit, as a fraction of the time"""
    is_benched: bool
    """True if fitted to a measurement of `ddpprof netbench`; False if fitted to the buckets of a run"""
    guesses_taken: bool = False
    """True if the slowdown of computation by communication was not measured; typical values for gloo are then assumed
    """

    def with_guessed_cost(self, ranks_per_core: float) -> Network:
        """Return the network with a typical cost to computation, for ranks that have no free core for gloo's threads.

        On loopback, the CPU time of an all-reduce equals its duration. On slower links, netbench measures 1.3 ns per
        byte at 4 Gbit/s, and 2 ns per byte at 1 Gbit/s. If several ranks share a core, each rank waits for the CPU time
        of all these ranks.
        """
        lasts = self.link.alone.ns_per_byte
        typical = max(1.0, ranks_per_core) * (_TAKEN_ON_A_LINK + _TAKEN_WITH_TIME * lasts)
        taken = Cost(0.0, min(lasts, typical))
        return replace(self, link=replace(self.link, taken=taken), guesses_taken=True)


def network_of_bench(bench: NetBench) -> Network | None:
    """Fit a network to a benchmark. Return ``None`` if the benchmark has too few sizes.

    The first quartile of each size is used, because longer times were disturbed by other work.
    """
    sizes = [one.num_bytes for one in bench.sizes]
    model = fit_size_model(sizes, [first_quartile(one.longest_ns) for one in bench.sizes])
    if model is None or model.slope_ns <= 0:
        return None
    beside = [one.num_bytes for one in bench.beside]
    link = Link(
        alone=_cost(model),
        busy=_robust_cost(beside, [first_quartile(one.lasted_ns) for one in bench.beside]),
        taken=_robust_cost(beside, [first_quartile(one.taken_ns) for one in bench.beside]),
        at_once=backend_of(bench.backend).num_at_once,
    )
    return Network(link, bench.world_size, sizes[0], sizes[-1], len(sizes), model.relative_error, is_benched=True)


def _cost(model: SizeModel) -> Cost:
    return Cost(max(0.0, model.constant_ns), max(0.0, model.slope_ns), model.floor_ns or 0.0)


def _robust_cost(sizes: Sequence[int], times_ns: Sequence[float]) -> Cost:
    """Fit a Theil–Sen line. A robust fit is needed because costs to computation are small, noisy differences."""
    points = list(zip(sizes, times_ns, strict=True))
    slopes = [(y - v) / (x - u) for (u, v), (x, y) in combinations(points, 2)]
    if not slopes:
        return NOTHING
    slope = max(0.0, median(slopes))
    return Cost(max(0.0, median(y - slope * x for x, y in points)), slope)


def network_of_steps(steps: Sequence[ObservedStep], training: Training) -> Network | None:
    """Fit a network to the times at which buckets were ready and finished.

    Return ``None`` if it is not known when any bucket finished.

    If buckets are sent one after the other, their durations are known. Otherwise, search for the time per byte at
    which a replay of the buckets matches the observed times best.
    """
    return _of_a_queue(steps, training) or _of_shared_link(steps, training)


def _of_a_queue(steps: Sequence[ObservedStep], training: Training) -> Network | None:
    """Fit buckets sent one after the other. Return ``None`` if they are sent concurrently, or if the fit is invalid."""
    sizes = training.bucket_bytes
    if backend_of(training.backend).num_at_once > 1 or any(len(step.finished_ns) < len(sizes) for step in steps):
        return None
    took: list[list[float]] = [[] for _ in sizes]
    for step in steps:
        free_ns = 0.0
        for index, launch in sorted(enumerate(training.launches(step.ready_ns)), key=lambda pair: pair[1]):
            took[index].append(step.finished_ns[index] - max(launch, free_ns))
            free_ns = step.finished_ns[index]
    times = [max(1.0, median(of_bucket)) for of_bucket in took]
    model = fit_size_model(sizes, times)
    if model is None or model.slope_ns <= 0 or model.constant_ns < 0:
        return None
    return _network(training, _cost(model), model.relative_error)


def _of_shared_link(steps: Sequence[ObservedStep], training: Training) -> Network | None:
    sizes, at_once = training.bucket_bytes, backend_of(training.backend).num_at_once
    telling = {index for index, size in enumerate(sizes) if size * _LEAST_OF_LARGEST >= max(sizes)}
    sent_in = [training.sent_when(step.ready_ns) for step in steps]
    if not any(telling & step.finished_ns.keys() for step in steps):
        return None

    def misses(ns_per_byte: float) -> list[float]:
        found = []
        for step, buckets in zip(steps, sent_in, strict=True):
            sent = replay_in_turn(buckets, step.computed_ns, Link(Cost(0.0, ns_per_byte), at_once=at_once)).buckets
            found += [
                (sent[index].finished_ns - ns) / max(1.0, ns - buckets[index].computed_ns)
                for index, ns in step.finished_ns.items()
                if index in telling
            ]
        return found

    best = _least_of(lambda ns_per_byte: sum(map(abs, misses(ns_per_byte))), _FASTEST, _SLOWEST)
    missed = misses(best)
    return _network(training, Cost(0.0, best), sqrt(sum(miss**2 for miss in missed) / len(missed)))


def _network(training: Training, alone: Cost, relative_error: float) -> Network:
    sizes = training.bucket_bytes
    return Network(
        link=Link(alone, at_once=backend_of(training.backend).num_at_once),
        world_size=training.world_size,
        least_bytes=min(sizes),
        most_bytes=max(sizes),
        num_sizes=len(set(sizes)),
        relative_error=relative_error,
        is_benched=False,
    )


def _least_of(cost: Callable[[float], float], low: float, high: float) -> float:
    """Return the argument between `low` and `high` that minimizes `cost`, by golden-section search on a log scale.

    The function must have a single minimum.
    """
    golden = (sqrt(5) - 1) / 2
    left, right = low * (high / low) ** (1 - golden), low * (high / low) ** golden
    of_left, of_right = cost(left), cost(right)
    for _ in range(_NARROWINGS):
        if of_left <= of_right:
            high, right, of_right = right, left, of_left
            left = low * (high / low) ** (1 - golden)
            of_left = cost(left)
        else:
            low, left, of_left = left, right, of_right
            right = low * (high / low) ** golden
            of_right = cost(right)
    return sqrt(low * high)
