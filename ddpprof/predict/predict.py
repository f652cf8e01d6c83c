"""Predict the duration of a step with other settings, and the uncertainty of the prediction.

The interval of a prediction comes from replays with other plausible networks:

slower, faster   by the error of the fit, which increases with the distance of bucket sizes, number of ranks and
                 bandwidth from the measured values; also with a higher or lower cost to concurrent computation
more latency     the largest plausible latency, if the buckets of the run have about the same size, because latency and
                 bandwidth then cannot be distinguished; the round trip of a short message limits it, if known
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, log2, sqrt

from ddpprof.model.backends import Compression, backend_of, sends_half
from ddpprof.model.ddp_module import same_buckets
from ddpprof.model.links import longest_message_ns
from ddpprof.predict import Algorithm, Setting, sent_share
from ddpprof.predict.network import Network
from ddpprof.predict.profile import PassProfile, Profile
from ddpprof.predict.replay import NOTHING, Computed, Cost, Link, Replayed, Training

_LEAST_RATE_ERROR = 0.02
_RATE_ERROR_PER_DOUBLING = 0.1
"""relative error per doubling for bucket sizes, numbers of ranks or bandwidths outside the measured range"""
_RATE_ERROR_OF_A_WIRE = 0.03
_OF_A_WIRE = 3.0
"""between hosts, the wire determines a time per byte of at least this many ns (at most 2.7 Gbit/s). Apart from latency,
it hardly depends on the size of a bucket: netbench measures 0.111 to 0.121 GB/s for 2 to 134 MB at 1 Gbit/s
"""
_BEYOND = 2
"""a bucket that is outside the range of measured sizes by at most this factor does not increase the error"""
_TAKEN_ERROR = 0.3
_MOST_TAKEN = 3.0
"""upper bound on how much gloo slows down computation, in ns per byte; used if the slowdown was not measured"""
_MOST_LATENCY_NS = 1e6
"""upper bound on the latency of a bucket, in ns; used if the latency was not measured"""
_MOST_LATENCY_OF_A_ROUND_NS = 10e6
"""largest plausible latency of one message, in ns, as between distant hosts or if threads wait for a core"""
_ONE_SIZE = 4
"""latency and bandwidth can be distinguished if the largest size is at least this many times the smallest"""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Alternative networks that determine the interval of a prediction."""

    links: tuple[Link, ...]
    reasons: tuple[str, ...]
    """messages that say why the network is less certain than the error of the fit"""


def doubts_about(network: Network, link: Link, setting: Setting, training: Training) -> Doubts:
    """Return the plausible alternatives to `link`, which is the link of the network with `setting` applied."""
    if link.alone == NOTHING:  # one rank
        return Doubts((link,), ())
    error, reasons = _rate_error(network, link, setting, training)
    slower, faster = _with_rates(link, 1 + error), _with_rates(link, 1 / (1 + error))
    if training.on_cpu and (link.taken == NOTHING or network.guesses_taken):
        faster = replace(faster, taken=NOTHING)
        reasons.append("the CPU time of communication is unknown; ddpprof netbench measures it")
        alone = replace(slower.alone, constant_ns=slower.alone.constant_ns + _MOST_LATENCY_NS)
        most_taken = max(_MOST_TAKEN, (1 + _TAKEN_ERROR) * link.taken.ns_per_byte)
        slower = replace(slower, alone=alone, taken=Cost(0.0, most_taken))
    elif training.on_cpu:
        slower = replace(slower, taken=link.taken.scaled(1 + _TAKEN_ERROR, 1 + _TAKEN_ERROR))
        faster = replace(faster, taken=link.taken.scaled(1 - _TAKEN_ERROR, 1 - _TAKEN_ERROR))
    links = [slower, faster]
    is_one_size = network.most_bytes < _ONE_SIZE * network.least_bytes
    if not network.is_benched and is_one_size:
        reasons.append("the run's buckets all have about the same size, so latency and bandwidth cannot be separated")
    if not network.is_benched and (is_one_size or (training.round_trip_ns is not None and not link.alone.constant_ns)):
        links.append(_with_most_latency(network, link, setting, training))
    return Doubts(tuple(links), tuple(reasons))


def _with_most_latency(network: Network, link: Link, setting: Setting, training: Training) -> Link:
    """Return the link with the largest plausible latency that leaves the duration of the run's buckets unchanged."""
    num_bytes = (network.least_bytes + network.most_bytes) / 2
    rounds, usual_ns = setting.algorithm.rounds(setting.world_size or network.world_size), link.alone.ns(num_bytes)
    of_round_ns = _MOST_LATENCY_OF_A_ROUND_NS
    if training.round_trip_ns is not None:
        of_round_ns = min(of_round_ns, longest_message_ns(training.round_trip_ns, waits_for_cores=training.on_cpu))
    latency_ns = min(usual_ns, rounds * of_round_ns)
    return replace(link, alone=Cost(latency_ns, (usual_ns - latency_ns) / num_bytes), busy=NOTHING)


def _rate_error(network: Network, link: Link, setting: Setting, training: Training) -> tuple[float, list[str]]:
    """Return the relative error of the bandwidth, and messages that say why it is larger than the error of the fit."""
    error, reasons = max(_LEAST_RATE_ERROR, network.relative_error), []
    doublings = _doublings_beyond(network, training.bucket_bytes)
    if doublings:
        is_wire = training.crosses_hosts and link.alone.ns_per_byte >= _OF_A_WIRE
        error += (_RATE_ERROR_OF_A_WIRE if is_wire else _RATE_ERROR_PER_DOUBLING) * doublings
        reasons.append(
            "some buckets are outside the range of sizes for which the network was measured "
            f"({_megabytes(network.least_bytes)} to {_megabytes(network.most_bytes)} MB)"
        )
    if setting.world_size is not None and setting.world_size != network.world_size:
        error += _RATE_ERROR_PER_DOUBLING * abs(log2(setting.world_size / network.world_size))
        reasons.append(f"the network was measured with {network.world_size} ranks, not with {setting.world_size}")
        if not network.is_benched and setting.latency_ns is None:
            reasons.append(
                "a run does not show how latency grows with the number of ranks: specify --latency or --network"
            )
    if setting.bytes_per_s is not None and link.alone.ns_per_byte:
        error += _RATE_ERROR_PER_DOUBLING / 2 * abs(log2(link.alone.ns_per_byte / network.link.alone.ns_per_byte))
        reasons.append("the bandwidth was specified, not measured")
    return error, reasons


def _doublings_beyond(network: Network, sizes: Sequence[int]) -> float:
    """Return by how many doublings bucket sizes are outside the measured range, averaged over the bytes."""
    total = 0.0
    for num_bytes in sizes:
        beyond = max(network.least_bytes / max(1, num_bytes), num_bytes / network.most_bytes)
        total += num_bytes * (log2(beyond) if beyond > _BEYOND else 0.0)
    return total / max(1, sum(sizes))


def _with_rates(link: Link, factor: float) -> Link:
    return replace(link, alone=link.alone.scaled(factor, factor), busy=link.busy.scaled(factor, factor))


def _megabytes(num_bytes: float) -> str:
    megabytes = num_bytes / 1e6
    return f"{megabytes:.0f}" if megabytes >= 100 else f"{megabytes:.3g}"


_BATCH_ERROR = 0.1
"""relative error of the predicted computation per doubling of the batch size, because computation may not be
proportional to the batch size
"""
_PASSES = {Compression.FP16: 2.0, Compression.BF16: 2.0, Compression.POWERSGD: 4.0}
"""computation time of a comm hook, as a multiple of the time to copy gradients into buckets; half of it is spent before
sending
"""


@dataclass(frozen=True, slots=True)
class PredictedParts:
    """The parts of a step in ns, which add up to the step."""

    forward_ns: float
    """time from the start of the step to the end of the last forward pass"""
    backward_ns: float
    """duration of the backward pass without communication"""
    slowed_ns: float
    """time that communication adds to the computation of the backward pass"""
    exposed_ns: float
    """time after the last gradient in which buckets are awaited and copied"""
    rest_ns: float
    """time of the optimizer, and of everything else that is not replayed"""

    @property
    def communication_ns(self) -> float:
        """Communication time of the step, in ns."""
        return self.slowed_ns + self.exposed_ns


@dataclass(frozen=True, slots=True)
class Prediction:
    step_ns: float
    low_ns: float
    high_ns: float
    """upper end of the 95 % interval"""
    parts: PredictedParts
    bucket_bytes: tuple[int, ...]
    """bucket sizes in launch order"""
    doubted_ns: tuple[float, ...]
    """step duration with each of the alternative networks (see `Doubts`), in the same order in all predictions"""
    missed_ns: float
    """error of the replay when it uses the recorded settings, scaled up for a longer predicted backward pass"""
    guessed_ns: float
    """error from assumptions about the computation time with a comm hook, or with a different batch size"""
    widened: tuple[str, ...]
    """messages about uncertainties that make the interval wider than the errors measured in the run"""


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain of one setting over another, in ns per step. The noise of the measured steps cancels out."""

    gain_ns: float
    low_ns: float
    high_ns: float


def gain(before: Prediction, after: Prediction) -> Gain:
    pairs = [(before.step_ns, after.step_ns), *zip(before.doubted_ns, after.doubted_ns, strict=True)]
    gains = [was - now for was, now in pairs]
    missed_ns = 0.0 if before == after else after.missed_ns
    own_ns = hypot(missed_ns, after.guessed_ns - before.guessed_ns)
    low_ns, high_ns = hypot(gains[0] - min(gains), own_ns), hypot(max(gains) - gains[0], own_ns)
    return Gain(gains[0], gains[0] - low_ns, gains[0] + high_ns)


@dataclass(frozen=True, slots=True)
class _PredictedPasses:
    """The synchronized backward passes that go through the same modules in a step. Times are their sums, in ns."""

    training: Training
    was_ns: float
    """predicted duration with the recorded settings"""
    parts: PredictedParts
    """parts of the step that are spent in the passes; `rest_ns` is 0"""
    doubted_ns: tuple[float, ...]
    missed_ns: float
    guessed_ns: float
    reasons: tuple[str, ...]

    @property
    def end_ns(self) -> float:
        parts = self.parts
        return parts.forward_ns + parts.backward_ns + parts.slowed_ns + parts.exposed_ns


def predict(profile: Profile, setting: Setting, target: Network | None = None) -> Prediction:
    """Predict the step. `target`: the network to train on, if it differs from the run's network."""
    network = target or profile.network
    setting = replace(setting, world_size=num_ranks(setting, profile.passes[0].training, network))
    passes = [_predict_passes(one, setting, network) for one in profile.passes]
    rest_ns = profile.step_ns - sum(one.was_ns for one in passes)
    step_ns = rest_ns + sum(one.end_ns for one in passes)
    doubted_ns = tuple(rest_ns + sum(ends) for ends in zip(*(one.doubted_ns for one in passes), strict=True))
    missed_ns, guessed_ns = hypot(*(one.missed_ns for one in passes)), sum(one.guessed_ns for one in passes)
    half_ns = sqrt(
        (2 * profile.step_error_ns) ** 2
        + missed_ns**2
        + max(abs(doubted - step_ns) for doubted in doubted_ns) ** 2
        + guessed_ns**2
    )
    return Prediction(
        step_ns=step_ns,
        low_ns=max(0.0, step_ns - half_ns),
        high_ns=step_ns + half_ns,
        parts=PredictedParts(
            forward_ns=sum(one.parts.forward_ns for one in passes),
            backward_ns=sum(one.parts.backward_ns for one in passes),
            slowed_ns=sum(one.parts.slowed_ns for one in passes),
            exposed_ns=sum(one.parts.exposed_ns for one in passes),
            rest_ns=rest_ns,
        ),
        bucket_bytes=_bucket_bytes([one.training for one in passes]),
        doubted_ns=doubted_ns,
        missed_ns=missed_ns,
        guessed_ns=guessed_ns,
        widened=tuple(dict.fromkeys(reason for one in passes for reason in one.reasons)),
    )


def _predict_passes(one: PassProfile, setting: Setting, network: Network) -> _PredictedPasses:
    training, computed = _training(one, setting), _computed(one, setting)
    share = sent_share(training.gradients, setting.compression, setting.powersgd_rank)
    after_ns_per_byte = _after_ns_per_byte(one, training, setting)

    def replayed(link: Link) -> Replayed:
        return training.replay(computed, _with_halves(link, setting, training), after_ns_per_byte, share)

    link = _link(network, setting, training.backend)
    base, doubts = replayed(link), doubts_about(network, link, setting, training)
    num_reduced = 1 if setting.accumulation else one.num_reduced
    pace = one.pace * num_reduced
    return _PredictedPasses(
        training=training,
        was_ns=one.pace * one.num_reduced * one.replayed_ns,
        parts=PredictedParts(
            forward_ns=pace * computed.forward_end_ns,
            backward_ns=pace * (computed.end_ns - computed.forward_end_ns),
            slowed_ns=pace * (base.computed_ns - computed.end_ns),
            exposed_ns=pace * (base.end_ns - base.computed_ns),
            rest_ns=0.0,
        ),
        doubted_ns=tuple(pace * replayed(other).end_ns for other in doubts.links),
        missed_ns=num_reduced * (one.replayed_ns - one.reduced_ns) * max(1.0, base.end_ns / one.replayed_ns),
        guessed_ns=num_reduced
        * hypot(
            computed.end_ns * _BATCH_ERROR * log2(setting.batch_scale),
            _hook_ns_per_byte(one, setting) * training.gradient_bytes / 2,
        ),
        reasons=(*doubts.reasons, *_guesses(one, setting)),
    )


def _bucket_bytes(trainings: Sequence[Training]) -> tuple[int, ...]:
    """Return the bucket sizes of each module, only once even if several kinds of passes go through the module."""
    of_modules: dict[int, tuple[int, ...]] = {}
    for training in trainings:
        of_modules |= training.bucket_bytes_by_module
    return tuple(size for sizes in of_modules.values() for size in sizes)


def num_ranks(setting: Setting, training: Training, network: Network) -> int:
    """Return the world size to predict, from the setting, the run or, if the run has a single rank, the network."""
    return setting.world_size or (training.world_size if training.world_size > 1 else network.world_size)


def _training(one: PassProfile, setting: Setting) -> Training:
    was = one.training
    asked = replace(
        was,
        static_graph=was.static_graph or setting.static_graph,
        gradient_as_bucket_view=was.gradient_as_bucket_view or setting.gradient_as_bucket_view,
    )
    if setting.buckets is None and asked.is_rebuilt == was.is_rebuilt:
        return asked
    order = [index for bucket in was.buckets for index in bucket] if was.is_rebuilt else one.order
    made = asked.remade(setting.buckets.caps if setting.buckets is not None else None, order)
    as_before = asked.is_rebuilt == was.is_rebuilt and same_buckets(made, was.buckets)
    return asked if as_before else replace(asked, buckets=made)


def _computed(one: PassProfile, setting: Setting) -> Computed:
    was, scale = one.computed, setting.batch_scale
    per_byte_ns = _hook_ns_per_byte(one, setting) / 2
    if setting.static_graph and not one.training.static_graph:
        was = was.sooner(one.searched_ns)
    passes = setting.accumulation or one.accumulation
    earlier_ns = was.end_ns * scale * (passes / one.accumulation - 1)
    gradients: list[float | None] = [None] * len(was.gradients_ns)
    end_ns, done_bytes = earlier_ns + was.end_ns * scale + per_byte_ns * one.training.gradient_bytes, 0
    for index in one.order:
        done_bytes += one.training.gradients[index].num_bytes
        own_ns = earlier_ns + (was.gradients_ns[index] or 0.0) * scale + per_byte_ns * done_bytes
        gradients[index] = max(0.0, own_ns) if setting.overlaps else end_ns
    return Computed(earlier_ns + was.forward_end_ns * scale, tuple(gradients), end_ns)


def _hook_ns_per_byte(one: PassProfile, setting: Setting) -> float:
    return 0.0 if setting.compression is None else _PASSES[setting.compression] * one.copied_ns_per_byte


def _with_halves(link: Link, setting: Setting, training: Training) -> Link:
    """Return the link with the cost of 16-bit gradients, which some backends add more slowly than 32-bit gradients."""
    if setting.compression is None or not sends_half(setting.compression.hook):
        return link
    world_size = setting.world_size or training.world_size
    added = backend_of(training.backend).half_ns_per_byte * (world_size - 1) / world_size
    alone, busy = (replace(one, ns_per_byte=one.ns_per_byte + added) for one in (link.alone, link.busy))
    return replace(link, alone=alone, busy=busy)


def _after_ns_per_byte(one: PassProfile, training: Training, setting: Setting) -> float:
    """Return the time per byte, in ns, that DDP and a hook need after a bucket has arrived."""
    copied = 0.0 if training.gradient_as_bucket_view else one.copied_ns_per_byte
    return copied + _hook_ns_per_byte(one, setting) / 2


def _link(network: Network, setting: Setting, backend: str) -> Link:
    """Return the link of the network, adapted to the setting's number of ranks, algorithm and speed."""
    was, ranks = network.link, setting.world_size or network.world_size
    if ranks == 1:
        return Link(NOTHING, at_once=was.at_once)
    rounds = setting.algorithm.rounds(ranks) / Algorithm.RING.rounds(network.world_size)
    if not network.is_benched:
        rounds = 1.0  # for buckets of a run, the constant part is mostly waiting for other ranks
    carried = setting.algorithm.bytes_per_byte(ranks)
    more = carried / Algorithm.RING.bytes_per_byte(network.world_size)
    link = replace(
        was,
        alone=was.alone.scaled(rounds, more),
        busy=was.busy.scaled(rounds, more),
        taken=was.taken.scaled(rounds, more),
    )
    if setting.latency_ns is not None:
        latency_ns = setting.latency_ns * setting.algorithm.rounds(ranks)
        more_ns = latency_ns - link.alone.constant_ns
        busy = replace(link.busy, constant_ns=max(0.0, link.busy.constant_ns + more_ns), floor_ns=0.0)
        link = replace(link, alone=Cost(latency_ns, link.alone.ns_per_byte), busy=busy)
    if setting.bytes_per_s is not None:
        payload = backend_of(backend).payload
        wire_ns_per_byte = carried * 1e9 / (setting.bytes_per_s * payload)
        taken = link.taken_at(wire_ns_per_byte)
        link = replace(
            link,
            alone=replace(link.alone, ns_per_byte=wire_ns_per_byte),
            busy=replace(link.busy, ns_per_byte=hypot(wire_ns_per_byte, taken.ns_per_byte)),
            taken=taken,
        )
    return link


def _guesses(one: PassProfile, setting: Setting) -> list[str]:
    guesses = []
    if setting.batch_scale != 1:
        guesses.append("computation time is assumed to grow with the batch size")
    if setting.compression is not None and one.copied_ns_per_byte:
        guesses.append("the hook's computation time is estimated from the time of DDP's own copies")
    elif setting.compression is not None:
        guesses.append(
            "the hook's computation time is ignored, because the run does not show how fast gradients are copied"
        )
    if setting.compression is not None and not one.training.knows_parameters:
        guesses.append("gradients are assumed to be 32-bit, because traces do not contain their dtype")
    return guesses
