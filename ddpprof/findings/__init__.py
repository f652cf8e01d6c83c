"""Rules: what was measured → what to change, and how much it could give back.

A rule is a function of `Observed`; it yields findings, or nothing where it does not apply or where the measures that it
needs are absent. `RULES` is the list. Gains are what one change alone recovers, predicted where the recorded steps can
be replayed, else an upper bound: two findings that explain the same milliseconds do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddpprof.findings import (
    buckets,
    collectives,
    data,
    device,
    horovod,
    memory,
    own_reduction,
    ranks,
    rpc,
    several_devices,
    wrapper,
)
from ddpprof.findings.finding import Finding, Observed

__all__ = ["RULES", "Finding", "Observed", "Rule", "find"]

Rule = Callable[[Observed], Iterator[Finding]]


def find(observed: Observed) -> tuple[Finding, ...]:
    """Every finding, by what it could give back, most first; those without a gain last.

    Where one change helps against several things, the first of them is told.
    """
    found: dict[object, Finding] = {}
    for finding in (finding for rule in RULES for finding in rule(observed)):
        found.setdefault(finding.predicted or finding, finding)
    return tuple(sorted(found.values(), key=lambda f: -1 if f.expected_ns is None else f.expected_ns, reverse=True))


RULES: tuple[Rule, ...] = (
    buckets.trailing_communication,
    buckets.buckets_too_large,
    buckets.buckets_too_small,
    buckets.first_bucket_late,
    buckets.better_buckets,
    buckets.late_parameter,
    ranks.straggler,
    device.overlap_slowdown,
    device.launch_bound,
    wrapper.unused_parameters,
    wrapper.static_graph,
    wrapper.buffers_broadcast,
    wrapper.gradient_copies,
    several_devices.data_parallel,
    several_devices.outputs_scattered_again,
    several_devices.device_imbalance,
    memory.memory_of_others,
    memory.memory_imbalance,
    rpc.many_small_calls,
    rpc.calls_in_a_row,
    own_reduction.own_reduction,
    horovod.negotiation,
    horovod.not_fused,
    horovod.fusion_copies,
    collectives.parameter_averaging,
    collectives.metrics_every_step,
    collectives.barrier_in_loop,
    data.missing_distributed_sampler,
    data.epoch_never_set,
    data.same_checkpoint,
    data.idle_for_data,
)
