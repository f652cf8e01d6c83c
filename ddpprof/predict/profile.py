"""Estimate a run's steps without communication. Predictions are based on this estimate.

    computed   times at which gradients would be ready: observed times minus the CPU time taken by buckets in transit,
               scaled to the duration of the backward pass in steps without communication, if there are any
    copied     time per byte of DDP's work after a bucket has arrived: from the trace, or fitted so that the replay ends
               at the same time as the observed steps
    rest       the step without the backward pass: the optimizer, and everything between steps
    pace       ratio of the observed to the replayed duration of the backward pass

All values are medians over the observed steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from ddpprof.errors import DdpprofError
from ddpprof.predict.network import Network
from ddpprof.predict.observed_steps import ObservedStep
from ddpprof.predict.replay import NOTHING, Computed, Cost, Link, SentBucket, Times, Training, replay_in_turn
from ddpprof.statistics import error_of_median

_MOST_COPIED = 4.0
"""longest plausible time to copy a bucket, in ns per byte; a longer time includes the script's own work before its
optimizer
"""
_MOST_PACE = 1.1
"""largest plausible `PassProfile.pace`, and inverse of the smallest; outside this range, the replay does not fit the
run
"""
_ENOUGH_SENT = 0.5
"""the slowdown of computation by communication is measured if at least this share of the gradients is sent during the
backward pass
"""
_UNKNOWN_ERROR = 0.0625
"""relative error of the step time that is assumed if there is only a single step"""


@dataclass(frozen=True, slots=True)
class PassProfile:
    """The synchronized backward passes that go through the same DDP modules in a step, assumed to be alike.

    Times are in ns since the beginning of the pass's share of the step.
    """

    training: Training
    computed: Computed
    copied_ns_per_byte: float
    replayed_ns: float
    """end of the backward pass in a replay with the recorded settings"""
    reduced_ns: float
    """end of the backward pass in the observed steps"""
    searched_ns: float = 0.0
    """time that DDP spends per forward pass on the search for unused parameters"""
    accumulation: int = 1
    """number of backward passes per gradient reduction"""
    num_reduced: int = 1
    """number of passes in a step that reduce gradients"""

    @property
    def pace(self) -> float:
        """Ratio of the observed to the replayed time, limited to plausible values."""
        return min(max(self.reduced_ns / self.replayed_ns, 1 / _MOST_PACE), _MOST_PACE)

    @property
    def order(self) -> tuple[int, ...]:
        """Gradients in the order in which they become ready."""
        known = [(ns, index) for index, ns in enumerate(self.computed.gradients_ns) if ns is not None]
        return tuple(index for _, index in sorted(known))


@dataclass(frozen=True, slots=True)
class Profile:
    passes: tuple[PassProfile, ...]
    """one profile for each set of DDP modules that a backward pass goes through; most jobs have a single such set"""
    step_ns: float
    """median duration of the measured steps"""
    step_error_ns: float
    """standard error of `step_ns`"""
    network: Network
    """network between the ranks of the run"""
    num_steps: int
    knows_alone: bool = False
    """True if the run has steps in which ranks do not communicate"""

    @property
    def training(self) -> Training:
        """The `Training` with the most gradient bytes."""
        return max((one.training for one in self.passes), key=lambda training: training.gradient_bytes)

    @property
    def has_one_module(self) -> bool:
        return len(self.passes) == 1 and len(self.passes[0].training.modules) == 1

    @property
    def comm_hook(self) -> str | None:
        """Communication hook of the first module with a hook; ``None`` if no module has a hook."""
        return next((one.training.comm_hook for one in self.passes if one.training.comm_hook is not None), None)

    @property
    def replay_error(self) -> float:
        """Error of the replay with the recorded settings, as a fraction of the step."""
        return sum(one.num_reduced * (one.replayed_ns - one.reduced_ns) for one in self.passes) / self.step_ns

    @property
    def batches_per_step(self) -> int | None:
        """Number of backward passes per step; ``None`` if they go through different modules, as in a GAN."""
        if len(self.passes) > 1:
            return None
        return self.passes[0].num_reduced * self.passes[0].accumulation

    def without_others(self, ranks: Profile) -> Profile:
        """Return this profile with the computation of `ranks`, which is a profile of only some of the ranks.

        Everything else is kept. Raises `DdpprofError` if the number of gradients differs.
        """
        if _num_gradients(ranks) != _num_gradients(self):
            raise DdpprofError("the excluded ranks and the other ranks have different numbers of gradients.")
        pairs = zip(self.passes, ranks.passes, strict=True)
        return replace(self, passes=tuple(replace(own, computed=other.computed) for own, other in pairs))


def _num_gradients(profile: Profile) -> list[int]:
    return [len(one.computed.gradients_ns) for one in profile.passes]


@dataclass(frozen=True, slots=True)
class ObservedPasses:
    """The synchronized backward passes through the same modules, in all observed steps."""

    training: Training
    passes: Sequence[ObservedStep]
    num_reduced: int
    """number of passes in a step that reduce gradients"""


def profile_of(
    kinds: Sequence[ObservedPasses],
    measured_ns: Sequence[float],
    network: Network,
    copied_ns: float | None = None,
    alone_ns: float | None = None,
    searched_ns: float = 0.0,
) -> Profile:
    """Return the profile of a step.

    `measured_ns`: durations of steps that were not profiled. `network`: network of the run. `copied_ns`: time per step
    in which DDP copies gradients out of its buckets, if known from a trace. `alone_ns`: duration of a backward pass
    without communication, if all passes go through the same modules. `searched_ns`: time per step in which DDP searches
    for unused parameters. Raises `DdpprofError` if the gradients have no bytes.
    """
    num_passes = sum(one.num_reduced for one in kinds)
    num_bytes = sum(one.num_reduced * one.training.gradient_bytes for one in kinds)
    if not num_bytes:
        raise DdpprofError("the run's gradients are empty, so there is nothing to replay.")
    copied = None if copied_ns is None else copied_ns / num_bytes
    passes = []
    for one in kinds:
        made, link = _pass_profile(one, network.link, copied, alone_ns)
        passes.append(replace(made, searched_ns=searched_ns / num_passes))
        network = replace(network, link=link)
    step_ns = median(measured_ns)
    return Profile(
        passes=tuple(passes),
        step_ns=step_ns,
        step_error_ns=error_of_median(measured_ns) if len(measured_ns) > 1 else _UNKNOWN_ERROR * step_ns,
        network=network,
        num_steps=len({step.step for one in kinds for step in one.passes}),
        knows_alone=alone_ns is not None,
    )


def _pass_profile(
    observed: ObservedPasses, link: Link, copied: float | None, alone_ns: float | None
) -> tuple[PassProfile, Link]:
    """Return the profile of one pass, and the link.

    If the run shows how much communication slows down computation, the link includes this cost.

    `copied`: ns per byte.
    """
    training, steps = observed.training, observed.passes
    reduced_ns = median(step.reduced_ns for step in steps)
    computed = _usual([_computed(training, step, link) for step in steps])
    if training.gradient_as_bucket_view:
        copied = 0.0
    elif copied is None:
        copied = _copied_ns_per_byte(training, computed, link, reduced_ns)
    if alone_ns is not None:
        observed_end_ns = median(step.computed_ns for step in steps)
        copied_in_ns = copied * training.gradient_bytes  # assumed to take as long as copying out
        end_ns = min(computed.forward_end_ns + alone_ns + copied_in_ns, observed_end_ns)
        if training.on_cpu and link.taken == NOTHING:
            link = replace(link, taken=_taken(training, steps, link, observed_end_ns - end_ns))
        computed = computed.ending_at(end_ns)
    profile = PassProfile(
        training=training,
        computed=computed,
        copied_ns_per_byte=copied,
        replayed_ns=training.replay(computed, link, copied).end_ns,
        reduced_ns=reduced_ns,
        accumulation=round(median(step.num_accumulated for step in steps)),
        num_reduced=observed.num_reduced,
    )
    return profile, link


def _computed(training: Training, step: ObservedStep, link: Link) -> Computed:
    """Return each observed time minus the CPU time that transfers had already taken by then."""
    sent = _sent(training, step, link)

    def taken_until(now_ns: float) -> float:
        return sum(link.taken.ns(size) * _share_sent(one, now_ns) for one, size in sent)

    return Computed(
        step.backward_ns,
        tuple(None if ns is None else max(0.0, ns - taken_until(ns)) for ns in step.ready_ns),
        step.computed_ns - taken_until(step.computed_ns),
    )


def _sent(training: Training, step: ObservedStep, link: Link) -> list[tuple[SentBucket, float]]:
    """Return the buckets as sent over the link during the observed computation, and their sizes in bytes."""
    buckets = training.sent_when(step.ready_ns)
    sent = replay_in_turn(buckets, step.computed_ns, replace(link, taken=NOTHING)).buckets
    return [(one, bucket.num_bytes) for one, bucket in zip(sent, buckets, strict=True)]


def _share_sent(bucket: SentBucket, now_ns: float) -> float:
    if now_ns <= bucket.started_ns:
        return 0.0
    return min(1.0, (now_ns - bucket.started_ns) / max(1.0, bucket.finished_ns - bucket.started_ns))


def _taken(training: Training, steps: Sequence[ObservedStep], link: Link, lost_ns: float) -> Cost:
    """Return the computation time lost per byte, assuming that the bytes sent in a backward pass caused its slowdown.

    The cost is not estimated if only a small part of the gradients was sent during the backward pass.
    """
    sent_bytes = median(_sent_bytes(training, step, link) for step in steps)
    if sent_bytes < _ENOUGH_SENT * training.gradient_bytes:
        return NOTHING
    return Cost(0.0, max(0.0, lost_ns) / sent_bytes)


def _sent_bytes(training: Training, step: ObservedStep, link: Link) -> float:
    """Return the number of bytes that are sent before the computation of the backward pass has ended."""
    return sum(size * _share_sent(one, step.computed_ns) for one, size in _sent(training, step, link))


def _copied_ns_per_byte(training: Training, computed: Computed, link: Link, reduced_ns: float) -> float:
    """Return the copy time per byte with which the replay ends at `reduced_ns`, found by bisection."""
    low, high = 0.0, _MOST_COPIED
    for _ in range(30):
        middle = (low + high) / 2
        if training.replay(computed, link, middle).end_ns < reduced_ns:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _usual(steps: Sequence[Computed]) -> Computed:
    """Return the medians over the steps. A gradient that is missing in most steps is ``None``."""

    def usual(times: Times) -> float | None:
        known = [ns for ns in times if ns is not None]
        return median(known) if 2 * len(known) > len(times) else None

    return Computed(
        median(step.forward_end_ns for step in steps),
        tuple(usual(times) for times in zip(*(step.gradients_ns for step in steps), strict=True)),
        median(step.end_ns for step in steps),
    )
