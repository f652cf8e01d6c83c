"""Which other networks could it be than the fitted one? Replays with each give a prediction its interval.

slower, faster   by the error of the fit, and by more the further sizes, ranks and bandwidth are from the measured ones;
                 with a higher and a lower cost to the concurrent computation
more latency     as much as there may be, if the run's buckets have about the same size, so that they do not show what
                 their time depends on
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from ddpprof.predict.network import Network
from ddpprof.predict.replay import NOTHING, Cost, Link
from ddpprof.predict.setting import Setting
from ddpprof.predict.training import Training

_LEAST_RATE_ERROR = 0.02
_RATE_ERROR_PER_DOUBLING = 0.1
"""error per doubling of bucket size, number of ranks or bandwidth, beyond what was measured"""
_BEYOND = 2
"""factor by which a bucket may exceed the measured sizes and still be as well known"""
_TAKEN_ERROR = 0.3
_MOST_TAKEN = 3.0
"""ns per byte, more than gloo was seen to cost a computation; used if it was not measured"""
_MOST_LATENCY_NS = 1e6
"""latency of a bucket, used if it was not measured"""
_MOST_LATENCY_OF_A_ROUND_NS = 10e6
"""most that passing a message on may take whatever its size: far hosts, or threads that wait for a core"""
_ONE_SIZE = 4
"""ratio of largest to smallest size below which sizes do not separate latency from rate"""


@dataclass(frozen=True, slots=True)
class Doubts:
    links: tuple[Link, ...]
    reasons: tuple[str, ...]
    """why they differ by more than the error of the fit, in words"""


def doubts_about(network: Network, link: Link, setting: Setting, training: Training) -> Doubts:
    """Return the alternatives. `link`: the network's link, as changed by `setting`, which has the number of ranks."""
    if link.alone == NOTHING:  # one rank
        return Doubts((link,), ())
    error, reasons = _rate_error(network, link, setting, training)
    slower, faster = _with_rates(link, 1 + error), _with_rates(link, 1 / (1 + error))
    if training.on_cpu and link.taken == NOTHING:
        reasons.append("it is unknown how much processor time communication takes; ddpprof netbench measures it")
        alone = replace(slower.alone, constant_ns=slower.alone.constant_ns + _MOST_LATENCY_NS)
        slower = replace(slower, alone=alone, taken=Cost(0.0, _MOST_TAKEN))
    elif training.on_cpu:
        slower = replace(slower, taken=link.taken.scaled(1 + _TAKEN_ERROR, 1 + _TAKEN_ERROR))
        faster = replace(faster, taken=link.taken.scaled(1 - _TAKEN_ERROR, 1 - _TAKEN_ERROR))
    links = [slower, faster]
    if not network.is_benched and network.most_bytes < _ONE_SIZE * network.least_bytes:
        reasons.append("the run's buckets all have about the same size, which does not separate latency from bandwidth")
        links.append(_with_most_latency(network, link, setting))
    return Doubts(tuple(links), tuple(reasons))


def _with_most_latency(network: Network, link: Link, setting: Setting) -> Link:
    """Return a link with as much latency as there may be, on which a bucket of the run's size takes as long."""
    num_bytes = (network.least_bytes + network.most_bytes) / 2
    rounds, usual_ns = setting.algorithm.rounds(setting.world_size or network.world_size), link.alone.ns(num_bytes)
    latency_ns = min(usual_ns, rounds * _MOST_LATENCY_OF_A_ROUND_NS)
    return replace(link, alone=Cost(latency_ns, (usual_ns - latency_ns) / num_bytes), busy=NOTHING)


def _rate_error(network: Network, link: Link, setting: Setting, training: Training) -> tuple[float, list[str]]:
    """Return the error as a fraction, with reasons for the part that is not the fit's own."""
    error, reasons, sizes = max(_LEAST_RATE_ERROR, network.relative_error), [], training.bucket_bytes
    beyond = max(network.least_bytes / max(1, min(sizes)), max(sizes) / network.most_bytes)
    if beyond > _BEYOND:
        error += _RATE_ERROR_PER_DOUBLING * log2(beyond)
        reasons.append(
            "some buckets are smaller or larger than those that measured the network, "
            f"{_megabytes(network.least_bytes)} to {_megabytes(network.most_bytes)} MB"
        )
    if setting.world_size is not None and setting.world_size != network.world_size:
        error += _RATE_ERROR_PER_DOUBLING * abs(log2(setting.world_size / network.world_size))
        reasons.append(f"{setting.world_size} ranks, but the network was measured among {network.world_size}")
        if not network.is_benched and setting.latency_ns is None:
            reasons.append("a run does not show how latency grows with ranks: give --latency or --network")
    if setting.bytes_per_s is not None and link.alone.ns_per_byte:
        error += _RATE_ERROR_PER_DOUBLING / 2 * abs(log2(link.alone.ns_per_byte / network.link.alone.ns_per_byte))
        reasons.append("the bandwidth is given rather than measured")
    return error, reasons


def _with_rates(link: Link, factor: float) -> Link:
    return replace(link, alone=link.alone.scaled(factor, factor), busy=link.busy.scaled(factor, factor))


def _megabytes(num_bytes: float) -> str:
    megabytes = num_bytes / 1e6
    return f"{megabytes:.0f}" if megabytes >= 100 else f"{megabytes:.3g}"
