"""Rules about Horovod, from its timeline.

The timeline does not show what computation hides, so waiting counts only after rank 0 announced its last gradient: its
backward pass is over by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from ddpprof.findings.finding import Finding, Observed, in_ms, size
from ddpprof.horovod.reductions import HorovodStep, HorovodSummary
from ddpprof.measures.ranks.arrivals import RankWaiting

_MANY_CYCLES = 3
"""limit in cycles: a longer wait is for a rank, not for a cycle"""
_DEFAULT_CYCLE_NS = 1_000_000
_SHORT_CYCLE_NS = 600_000
"""cycle time below which there is nothing to gain"""
_SMALL_BYTES = 1_000_000
_MANY_ALONE = 4
"""small tensors per step in collectives of their own"""
_MOSTLY = 0.5


def _median(summary: HorovodSummary, value: Callable[[HorovodStep], int]) -> int:
    return round(median(map(value, summary.steps))) if summary.steps else 0


def negotiation(summary: HorovodSummary, o: Observed) -> Iterator[Finding]:
    """Report ready gradients that wait for a late rank, or for Horovod's next cycle."""
    gain = _median(summary, lambda s: s.trailing.waiting_ns)
    if not o.worth(gain):
        return
    cycle = summary.cycle_ns or _DEFAULT_CYCLE_NS
    trailing = _median(summary, lambda s: s.trailing.total_ns)
    marked = "" if summary.cycle_ns is None else f"; a cycle takes {in_ms(summary.cycle_ns)}"
    evidence = f"all gradients are reduced {in_ms(trailing)} after rank 0's last one is ready{marked}"
    if gain <= _MANY_CYCLES * cycle:
        if summary.cycle_ns is not None and summary.cycle_ns <= _SHORT_CYCLE_NS:
            return
        yield Finding(
            "horovod-cycle",
            f"Reductions wait {in_ms(gain)} per step for Horovod's next cycle",
            evidence,
            "HOROVOD_CYCLE_TIME=0.5 (milliseconds; the default is 1): a tensor that is ready waits for half of it on "
            "average.",
            gain,
        )
        return
    late = _late_rank(o)
    whom = f"rank {late.rank}" if late is not None else "rank 1" if o.world_size == 2 else "other ranks"
    if late is not None:
        evidence += f"; where Horovod says, rank {late.rank} came last for {late.num_last} of {late.num_collectives}"
        evidence += " tensors"
    elif o.world_size != 2:
        evidence += "; only a timeline recorded with HOROVOD_CACHE_CAPACITY=0 says for which of them"
    yield Finding(
        "horovod-straggler",
        f"Rank 0 waits {in_ms(gain)} per step for {whom}, after its own gradients are ready",
        evidence,
        "Look at what that rank does before its gradients: data loading, larger batches, a slower or busier machine. A "
        "shorter HOROVOD_CYCLE_TIME does not help.",
        gain,
    )


def _late_rank(o: Observed) -> RankWaiting | None:
    """Return the rank that came last for most of the tensors for which a single rank came last."""
    known = [one for one in o.waiting if one.num_last]
    latest = max(known, key=lambda one: one.num_last or 0, default=None)
    if latest is None or latest.rank == 0:
        return None
    return latest if (latest.num_last or 0) > _MOSTLY * sum(one.num_last or 0 for one in known) else None


def not_fused(summary: HorovodSummary, o: Observed) -> Iterator[Finding]:
    """Report many small tensors that are each reduced on their own."""
    alone = _median(summary, lambda s: s.num_alone)
    gain = _median(summary, lambda s: s.alone_ns - s.longest_alone_ns)
    small = [t for t in summary.tensors if t.num_fused == 1 and t.num_bytes is not None and t.num_bytes < _SMALL_BYTES]
    if alone < _MANY_ALONE or len(small) < _MANY_ALONE or not o.worth(gain):
        return
    tensors = _median(summary, lambda s: s.num_tensors)
    average = sum(t.num_bytes or 0 for t in small) / len(small)
    yield Finding(
        "horovod-not-fused",
        f"{alone} of {tensors} tensors per step are reduced one by one",
        f"{len(small)} of them are small, {size(average)} on average; their collectives take "
        f"{in_ms(_median(summary, lambda s: s.alone_ns))} per step",
        "HOROVOD_FUSION_THRESHOLD=134217728 (its default; 0 switches fusion off); if that is already set, a longer "
        "HOROVOD_CYCLE_TIME lets more tensors become ready for one collective.",
        gain,
    )


def fusion_copies(summary: HorovodSummary, o: Observed) -> Iterator[Finding]:
    """Report gradients that are copied into the fusion buffer and back."""
    gain = _median(summary, lambda s: s.reduction.copy_ns)
    if not o.worth(gain):
        return
    most = max(summary.tensors, key=lambda tensor: tensor.num_bytes or 0)
    largest = f"; the largest tensor, {most.tensor}, has {size(most.num_bytes)}" if most.num_bytes else ""
    yield Finding(
        "horovod-copies",
        f"Copies into and out of the fusion buffer take {in_ms(gain)} per step",
        f"while no collective runs; {_median(summary, lambda s: s.num_tensors - s.num_alone)} tensors per step are "
        f"fused{largest}",
        "A tensor that is larger than HOROVOD_FUSION_THRESHOLD is reduced in place: set it below the largest ones. "
        "torch's DistributedDataParallel(model, gradient_as_bucket_view=True) needs no copies at all.",
        gain,
    )
