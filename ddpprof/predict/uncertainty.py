"""Which other networks may it be than the one that was fitted? Replayed with each, a prediction gets its interval.

slower, faster   by what the fit misses, and by more the further sizes, ranks and bandwidth are from what was measured;
                 with more and with less taken of computation beside it
all latency      where the run's buckets are of about one size, which tells their time but not what it depends on
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
"""of a bucket's size, of the number of ranks, or of the bandwidth, beyond what was measured"""
_BEYOND = 2
"""A bucket that is larger than all that were measured by no more than this is as well known as they are."""
_TAKEN_ERROR = 0.3
_MOST_TAKEN = 3.0
"""ns per byte: more than gloo was seen to take of computation, where nobody measured it"""
_MOST_LATENCY_NS = 1e6
"""of a bucket, where nobody measured it"""
_ONE_SIZE = 4
"""Sizes whose largest is not this many times the smallest do not tell latency and rate apart."""


@dataclass(frozen=True, slots=True)
class Doubts:
    links: tuple[Link, ...]
    reasons: tuple[str, ...]
    """why they differ by more than what the fit misses, in words"""


def doubts_about(network: Network, link: Link, setting: Setting, training: Training) -> Doubts:
    """`link`: that of the network, as `setting` changes it, which says how many ranks there are."""
    if link.alone == NOTHING:  # one rank
        return Doubts((link,), ())
    error, reasons = _rate_error(network, link, setting, training)
    slower, faster = _with_rates(link, 1 + error), _with_rates(link, 1 / (1 + error))
    if training.on_cpu and link.taken == NOTHING:
        reasons.append("what communication takes of the processor is not known: ddpprof netbench measures it")
        alone = replace(slower.alone, constant_ns=slower.alone.constant_ns + _MOST_LATENCY_NS)
        slower = replace(slower, alone=alone, taken=Cost(0.0, _MOST_TAKEN))
    elif training.on_cpu:
        slower = replace(slower, taken=link.taken.scaled(1 + _TAKEN_ERROR, 1 + _TAKEN_ERROR))
        faster = replace(faster, taken=link.taken.scaled(1 - _TAKEN_ERROR, 1 - _TAKEN_ERROR))
    links = [slower, faster]
    if not network.is_benched and network.most_bytes < _ONE_SIZE * network.least_bytes:
        reasons.append("the run's buckets are of about one size, which does not tell latency and bandwidth apart")
        usual_ns = link.alone.ns((network.least_bytes + network.most_bytes) / 2)
        links.append(replace(link, alone=Cost(usual_ns), busy=NOTHING))
    return Doubts(tuple(links), tuple(reasons))


def _rate_error(network: Network, link: Link, setting: Setting, training: Training) -> tuple[float, list[str]]:
    """As a fraction, with the reasons for what of it is not the fit's own."""
    error, reasons, sizes = max(_LEAST_RATE_ERROR, network.relative_error), [], training.bucket_bytes
    beyond = max(network.least_bytes / max(1, min(sizes)), max(sizes) / network.most_bytes)
    if beyond > _BEYOND:
        error += _RATE_ERROR_PER_DOUBLING * log2(beyond)
        reasons.append(
            "some buckets are smaller or larger than those that the network is known by, "
            f"{network.least_bytes / 1e6:.3g} to {network.most_bytes / 1e6:.3g} MB"
        )
    if setting.world_size is not None and setting.world_size != network.world_size:
        error += _RATE_ERROR_PER_DOUBLING * abs(log2(setting.world_size / network.world_size))
        reasons.append(f"{setting.world_size} ranks, where the network was measured among {network.world_size}")
        if not network.is_benched and setting.latency_ns is None:
            reasons.append("how latency grows with ranks a run does not tell: give --latency, or --network")
    if setting.bytes_per_s is not None and link.alone.ns_per_byte:
        error += _RATE_ERROR_PER_DOUBLING / 2 * abs(log2(link.alone.ns_per_byte / network.link.alone.ns_per_byte))
        reasons.append("the bandwidth is given, not measured")
    return error, reasons


def _with_rates(link: Link, factor: float) -> Link:
    return replace(link, alone=link.alone.scaled(factor, factor), busy=link.busy.scaled(factor, factor))
