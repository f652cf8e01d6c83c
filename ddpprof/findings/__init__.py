"""Rules: they turn measurements into advice on what to change, and how much it could give back.

A rule is a function of `Observed`; it yields findings, or nothing if it does not apply or the measures that it
needs are absent. `RULES` lists all rules. A gain is what one change alone recovers: predicted if the recorded steps
can be replayed, otherwise an upper bound. Gains of two findings that explain the same milliseconds do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ddpprof.findings import (
    accumulation,
    buckets,
    data,
    device,
    hangs,
    losses,
    ranks,
    replicas,
    wrapper,
)
from ddpprof.findings.finding import Finding, Observed
from ddpprof.findings.noise import is_noise
from ddpprof.findings.predictions import within

__all__ = ["RULES", "Finding", "Observed", "Rule", "find"]

Rule = Callable[[Observed], Iterator[Finding]]
_BROKEN = ("nonfinite-loss", "copies-differ", "unfrozen-parameters", "unaveraged-parameters", "skipped-backward")
"""rules that find a training whose result is worthless: no gain matters before that is mended"""
_DISTORTING = ("threads-exceed-cores",)
"""rules that find what distorts all measured times, if threads were seen to wait: other gains are only known once that
is mended"""


def find(observed: Observed) -> tuple[Finding, ...]:
    """Return all findings: first a training that is broken or distorted, then gains, the rest, and last noise.

    Among the gains, those that only a replay could tell, which was not possible, come last.

    If one change addresses several findings, only the first of them is returned. Rules that advise the same change
    have the same object of `Predictions`.
    """
    found: dict[object, Finding] = {}
    for finding in (finding for rule in RULES for finding in rule(observed)):
        advice = observed.advice.get(finding.rule, finding.advice)
        bounded = _bounded(finding)
        noted = replace(bounded, advice=advice, is_noise=is_noise(bounded, observed))
        found.setdefault(finding if finding.predicted is None else id(finding.predicted), noted)
    beyond = [finding for finding in found.values() if not finding.is_noise]
    leading = (*_BROKEN, *(_DISTORTING if observed.threads_wait else ()))
    broken = sorted((one for one in beyond if one.rule in leading), key=lambda one: one.rule in _DISTORTING)
    known = [finding for finding in beyond if finding.expected_ns is not None]
    gains = [
        *_by_gain([finding for finding in known if not finding.is_guess]),
        *_by_gain([finding for finding in known if finding.is_guess]),
    ]
    others = [finding for finding in beyond if finding.expected_ns is None and finding not in broken]
    return (*broken, *gains, *others, *(finding for finding in found.values() if finding.is_noise))


def _bounded(finding: Finding) -> Finding:
    """Return the finding with a gain that is at most its cause."""
    if finding.cause_ns is None or finding.gain_ns is None:
        return finding
    predicted = None if finding.predicted is None else within(finding.predicted, finding.cause_ns)
    return replace(finding, gain_ns=min(finding.gain_ns, finding.cause_ns), predicted=predicted)


def _by_gain(findings: Sequence[Finding]) -> list[Finding]:
    """Sort by gain, largest first; gains whose intervals overlap stay in the order of the rules.

    This makes two runs of one job name the same change first.
    """
    left = sorted(findings, key=lambda f: f.expected_ns or 0, reverse=True)
    ordered: list[Finding] = []
    while left:
        may_be_first = [finding for finding in left if _most_ns(finding) >= _least_ns(left[0])]
        ordered.append(min(may_be_first, key=findings.index))
        left.remove(ordered[-1])
    return ordered


def _least_ns(finding: Finding) -> int:
    """Return the least gain, ns per step; for a mere upper bound, half of the bound."""
    return (finding.expected_ns or 0) // 2 if finding.predicted is None else finding.predicted.low_ns


def _most_ns(finding: Finding) -> int:
    return (finding.expected_ns or 0) if finding.predicted is None else finding.predicted.high_ns


RULES: tuple[Rule, ...] = (
    accumulation.reduces_every_pass,
    buckets.trailing_communication,
    buckets.buckets_too_large,
    buckets.buckets_too_small,
    buckets.first_bucket_late,
    buckets.better_buckets,
    buckets.late_parameter,
    ranks.straggler,
    ranks.slow_rank,
    device.overlap_slowdown,
    device.launch_bound,
    device.threads_exceed_cores,
    wrapper.unused_parameters,
    wrapper.static_graph,
    wrapper.buffers_broadcast,
    wrapper.gradient_copies,
    lambda o: iter(o.beside),  # of topics
    device.device_imbalance,
    losses.nonfinite_loss,
    replicas.copies_differ,
    replicas.unfrozen_parameters,
    replicas.unaveraged_parameters,
    replicas.unwrapped_parameters,
    data.same_samples,
    data.same_random_numbers,
    data.same_worker_seeds,
    data.epoch_never_set,
    hangs.skipped_backward,
    hangs.unequal_batches,
    hangs.collective_of_some_ranks,
    hangs.long_timeout,
    data.same_checkpoint,
    data.idle_for_data,
)
