"""How long would a run's own steps be without communication? Predictions start from this.

    computed   when a gradient would be ready: its observed time, without the CPU time taken by buckets in transit; the
               backward pass is as long as in steps without communication, if there are any
    copied     DDP's work per byte once a bucket has arrived: from the trace, or chosen so that the replay ends when the
               observed steps did
    rest       the step outside the backward pass: the optimizer, and everything between steps
    pace       observed length of the backward pass divided by the replayed one

All are medians over the observed steps.
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
"""ns per byte; anything slower is not a copy but the script's own work before its optimizer"""
_MOST_PACE = 1.1
"""largest pace, and inverse of the smallest; outside this range, the replay's model does not fit"""
_ENOUGH_SENT = 0.5
"""minimum share of the gradients that must be sent"""
_UNKNOWN_ERROR = 0.0625
"""relative error of a single step, whose spread is unknown"""


@dataclass(frozen=True, slots=True)
class PassProfile:
    """The reduced backward passes of a step through the same DDP modules, assumed to be alike.

    Times are those of one pass, from where its part of the step begins.
    """

    training: Training
    computed: Computed
    copied_ns_per_byte: float
    replayed_ns: float
    """end of the backward pass with the recorded settings, according to the replay"""
    reduced_ns: float
    """the same, as observed"""
    searched_ns: float = 0.0
    """time that DDP spends in every forward to find unused parameters"""
    accumulation: int = 1
    """number of backward passes per reduction"""
    num_reduced: int = 1
    """number of such passes in a step"""

    @property
    def pace(self) -> float:
        """Observed time divided by the replayed one, within the limits of what the machine may cause."""
        return min(max(self.reduced_ns / self.replayed_ns, 1 / _MOST_PACE), _MOST_PACE)

    @property
    def order(self) -> tuple[int, ...]:
        """Gradients in the order in which they become ready."""
        known = [(ns, index) for index, ns in enumerate(self.computed.gradients_ns) if ns is not None]
        return tuple(index for _, index in sorted(known))


@dataclass(frozen=True, slots=True)
class Profile:
    passes: tuple[PassProfile, ...]
    """one profile for each set of DDP modules that a backward pass of the step goes through; most jobs have one"""
    step_ns: float
    """median of measured steps"""
    step_error_ns: float
    """standard error of the median"""
    network: Network
    """network between the ranks of the run"""
    num_steps: int
    knows_alone: bool = False
    """True if the run has steps without communication"""

    @property
    def training(self) -> Training:
        """The training whose passes reduce the most bytes."""
        return max((one.training for one in self.passes), key=lambda training: training.gradient_bytes)

    @property
    def has_one_module(self) -> bool:
        return len(self.passes) == 1 and len(self.passes[0].training.modules) == 1

    @property
    def comm_hook(self) -> str | None:
        """The first module's communication hook that affects what is sent; ``None`` if there is none."""
        return next((one.training.comm_hook for one in self.passes if one.training.comm_hook is not None), None)

    @property
    def replay_error(self) -> float:
        """Error of the replay with recorded settings, as a fraction of the step."""
        return sum(one.num_reduced * (one.replayed_ns - one.reduced_ns) for one in self.passes) / self.step_ns

    @property
    def batches_per_step(self) -> int | None:
        """Number of backward passes in a step; ``None`` if they go through different modules, as in a GAN."""
        if len(self.passes) > 1:
            return None
        return self.passes[0].num_reduced * self.passes[0].accumulation

    def without_others(self, ranks: Profile) -> Profile:
        """Return a profile as if all ranks computed like `ranks`, which is the profile of some of them.

        Everything else is as measured on all ranks. Raises `DdpprofError` if it has other gradients.
        """
        if _num_gradients(ranks) != _num_gradients(self):
            raise DdpprofError("the traces of the other ranks show a different number of gradients.")
        pairs = zip(self.passes, ranks.passes, strict=True)
        return replace(self, passes=tuple(replace(own, computed=other.computed) for own, other in pairs))


def _num_gradients(profile: Profile) -> list[int]:
    return [len(one.computed.gradients_ns) for one in profile.passes]


@dataclass(frozen=True, slots=True)
class ObservedPasses:
    """The reduced backward passes through the same modules, in all observed steps."""

    training: Training
    passes: Sequence[ObservedStep]
    num_reduced: int
    """number of such passes in a step"""


def profile_of(
    kinds: Sequence[ObservedPasses],
    measured_ns: Sequence[float],
    network: Network,
    copied_ns: float | None = None,
    alone_ns: float | None = None,
    searched_ns: float = 0.0,
) -> Profile:
    """Return the profile of a step.

    `measured_ns`: steps that were not profiled. `network`: the run's network. `copied_ns`: time per step that DDP
    spends copying out of its buckets, if a trace has it. `alone_ns`: length of a backward pass without communication,
    if all passes go through the same modules. `searched_ns`: time per step that DDP spends searching for unused
    parameters. Raises `DdpprofError` if the gradients have no bytes.
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
    """Return the profile of one of these passes, and the link with its cost to the computation, if that is visible.

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
        copied_in_ns = copied * training.gradient_bytes  # the same time as copying them out again
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
    """Return observed times minus the CPU time that transfers had taken up to then."""
    sent = _sent(training, step, link)

    def taken_until(now_ns: float) -> float:
        return sum(link.taken.ns(size) * _share_sent(one, now_ns) for one, size in sent)

    return Computed(
        step.backward_ns,
        tuple(None if ns is None else max(0.0, ns - taken_until(ns)) for ns in step.ready_ns),
        step.computed_ns - taken_until(step.computed_ns),
    )


def _sent(training: Training, step: ObservedStep, link: Link) -> list[tuple[SentBucket, float]]:
    """Return the buckets as sent over the link during the observed computation, with their bytes."""
    buckets = training.sent_when(step.ready_ns)
    sent = replay_in_turn(buckets, step.computed_ns, replace(link, taken=NOTHING)).buckets
    return [(one, bucket.num_bytes) for one, bucket in zip(sent, buckets, strict=True)]


def _share_sent(bucket: SentBucket, now_ns: float) -> float:
    if now_ns <= bucket.started_ns:
        return 0.0
    return min(1.0, (now_ns - bucket.started_ns) / max(1.0, bucket.finished_ns - bucket.started_ns))


def _taken(training: Training, steps: Sequence[ObservedStep], link: Link, lost_ns: float) -> Cost:
    """Return the cost of buckets sent during the backward pass, if they caused all of its loss.

    With few such buckets, the result would be noise.
    """
    sent_bytes = median(_sent_bytes(training, step, link) for step in steps)
    if sent_bytes < _ENOUGH_SENT * training.gradient_bytes:
        return NOTHING
    return Cost(0.0, max(0.0, lost_ns) / sent_bytes)


def _sent_bytes(training: Training, step: ObservedStep, link: Link) -> float:
    """Return the bytes sent until the backward pass had finished its computation."""
    return sum(size * _share_sent(one, step.computed_ns) for one, size in _sent(training, step, link))


def _copied_ns_per_byte(training: Training, computed: Computed, link: Link, reduced_ns: float) -> float:
    """Return the copying time per byte with which the replay ends when the steps did, found by bisection."""
    low, high = 0.0, _MOST_COPIED
    for _ in range(30):
        middle = (low + high) / 2
        if training.replay(computed, link, middle).end_ns < reduced_ns:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _usual(steps: Sequence[Computed]) -> Computed:
    """Return medians over steps; a gradient that is missing in most steps is absent."""

    def usual(times: Times) -> float | None:
        known = [ns for ns in times if ns is not None]
        return median(known) if 2 * len(known) > len(times) else None

    return Computed(
        median(step.forward_end_ns for step in steps),
        tuple(usual(times) for times in zip(*(step.gradients_ns for step in steps), strict=True)),
        median(step.end_ns for step in steps),
    )
