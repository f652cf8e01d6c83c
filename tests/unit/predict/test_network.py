"""The network of a run from its buckets, and of a netbench: see `predictions` for the units."""

import json
from dataclasses import replace
from typing import Any

import pytest
from netbenches import netbench
from predictions import MIB, UNIT, observed_step, training

from ddpprof.load.record import parse_netbench
from ddpprof.model.ddp_module import Gradient
from ddpprof.predict.network import network_of_bench, network_of_steps
from ddpprof.predict.replay import NOTHING, Cost

SIZES = (MIB, 2 * MIB, 4 * MIB)
THREE = {"gradients": tuple(map(Gradient, SIZES)), "buckets": ((0,), (1,), (2,))}


@pytest.mark.parametrize("latency", [0, 3])
def test_nccl_s_buckets_tell_latency_and_rate(latency: float) -> None:
    """The second waits for the first until 22 + latency, the third starts when it is there."""
    ends = {0: 20 + 1 + latency, 1: 20 + 1 + 2 + 2 * latency, 2: 40 + 4 + latency}
    network = network_of_steps([observed_step((20, 20.5, 40), ends)], training(**THREE))
    assert network is not None
    assert network.link.alone.ns_per_byte == pytest.approx(1)
    assert network.link.alone.constant_ns / UNIT == pytest.approx(latency, abs=1e-6)
    assert (network.link.at_once, network.num_sizes, network.least_bytes, network.most_bytes) == (1, 3, MIB, 4 * MIB)
    assert network.relative_error == pytest.approx(0, abs=1e-6)
    assert not network.is_benched


def test_a_step_that_was_disturbed_counts_no_more_than_the_others() -> None:
    usual, disturbed = {0: 21, 1: 32, 2: 44}, {0: 29, 1: 39, 2: 60}
    steps = [observed_step((20, 30, 40), ends) for ends in (usual, disturbed, usual)]
    network = network_of_steps(steps, training(**THREE))
    assert network is not None
    assert network.link.alone.ns_per_byte == pytest.approx(1)


def test_a_step_of_which_no_bucket_was_timed_does_not_hide_the_others() -> None:
    timed, unseen = observed_step((20, 24, 25), {0: 22, 1: 31, 2: 36}), observed_step((20, 24, 25), {})
    network = network_of_steps([unseen, timed], training(**THREE, backend="gloo"))
    assert network is not None
    assert network == network_of_steps([timed], training(**THREE, backend="gloo"))
    assert network_of_steps([unseen], training(**THREE, backend="gloo")) is None


def test_gloo_s_buckets_share_the_link() -> None:
    """At 2 ns per byte: from 25 on 1.5 MiB are left of the second, which is there at 31; the third at 36."""
    two_at_once = observed_step((20, 24, 25), {0: 22, 1: 31, 2: 36})
    network = network_of_steps([two_at_once], training(**THREE, backend="gloo"))
    assert network is not None
    assert network.link.alone.ns_per_byte == pytest.approx(2, rel=1e-3)
    assert network.link.at_once == 2


def test_no_end_of_a_bucket_tells_nothing() -> None:
    assert network_of_steps([observed_step((20, 30, 40), {})], training(**THREE)) is None


def bench(beside: tuple[tuple[int, int, int], ...] = (), **changes: Any) -> Any:
    """Of 1, 2, 4 and 8 MiB: 100 µs and 2 ns per byte, now and then twice that; `beside`: MiB, taken, lasted in ns."""
    sizes = [
        {"num_bytes": size, "longest_ns": [ns, ns, ns, 2 * ns], "shortest_ns": [ns] * 4, "cpu_ns": [1] * 4}
        for size, ns in ((mib * MIB, 100_000 + 2 * mib * MIB) for mib in (1, 2, 4, 8))
    ]
    rows = [{"num_bytes": mib * MIB, "taken_ns": [taken], "lasted_ns": [lasted]} for mib, taken, lasted in beside]
    return parse_netbench(json.dumps(netbench(sizes=sizes, beside=rows, **changes)).encode(), "x")


def test_netbench_tells_latency_and_rate() -> None:
    network = network_of_bench(bench())
    assert network is not None
    assert (network.link.alone.constant_ns, network.link.alone.ns_per_byte) == pytest.approx((100_000, 2))
    assert (network.world_size, network.num_sizes, network.most_bytes) == (4, 4, 8 * MIB)
    assert (network.link.at_once, network.is_benched) == (2, True)
    assert (network.link.busy, network.link.taken) == (NOTHING, NOTHING)


def test_netbench_tells_what_is_taken_of_computation() -> None:
    """1 ms and 3 ns per byte are taken, and 2 ms and 4 ns per byte it lasts; one size was disturbed."""
    rows = [(mib, 1_000_000 + 3 * mib * MIB, 2_000_000 + 4 * mib * MIB) for mib in (1, 2, 4, 8, 16)]
    network = network_of_bench(bench((*rows[:3], (8, 0, 500_000_000), *rows[4:])))
    assert network is not None
    assert (network.link.taken.constant_ns, network.link.taken.ns_per_byte) == pytest.approx((1_000_000, 3))
    assert (network.link.busy.constant_ns, network.link.busy.ns_per_byte) == pytest.approx((2_000_000, 4))


def test_a_line_needs_three_sizes() -> None:
    made = bench()
    assert network_of_bench(replace(made, sizes=made.sizes[:2])) is None


@pytest.mark.parametrize(
    ("lasts", "ranks_per_core", "taken"),
    [
        pytest.param(0.55, 1, 0.55, id="loopback-all-of-it"),
        pytest.param(2.0, 1, 1.32, id="4-gbit"),
        pytest.param(8.0, 1, 1.98, id="1-gbit"),
        pytest.param(8.0, 0.5, 1.98, id="1-gbit-with-two-cores-each"),
        pytest.param(12.0, 2, 4.84, id="1-gbit-with-half-a-core-each"),
    ],
)
def test_the_usual_cost_of_gloo_to_the_computation_is_what_netbench_measures(
    lasts: float, ranks_per_core: float, taken: float
) -> None:
    """In ns per byte: 0.55 on loopback, 1.3 at 4 Gbit/s, 2 at 1 Gbit/s, on ranks without a core for gloo's threads.

    Four ranks on two cores gained 170 of 237 ms at 1 Gbit/s in `analyses/advice`, when each was assumed to lose only
    its own CPU time.
    """
    network = network_of_steps([observed_step((20, 24, 25), {0: 22, 1: 31, 2: 36})], training(**THREE, backend="gloo"))
    assert network is not None
    slower = replace(network, link=replace(network.link, alone=Cost(0.0, lasts)))
    guessed = slower.with_guessed_cost(ranks_per_core)
    assert (guessed.link.taken.constant_ns, guessed.guesses_taken) == (0, True)
    assert guessed.link.taken.ns_per_byte == pytest.approx(taken)
