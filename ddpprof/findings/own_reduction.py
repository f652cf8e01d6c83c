"""A rule about gradients that the script reduces without torch's DDP."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.finding import Finding, Observed, ms, size


def own_reduction(o: Observed) -> Iterator[Finding]:
    """Hooks of the script's own, as Apex's DistributedDataParallel has them, do what torch's DDP does."""
    own = o.own_reduction
    if own is None:
        return
    volume = "" if own.num_bytes is None else f" of {size(own.num_bytes)} in all"
    flat = "" if own.flatten_ns is None else f"; flattening gradients takes {ms(own.flatten_ns)} of the training thread"
    yield Finding(
        "own-reduction",
        "Gradients are all-reduced without torch's DDP, by hooks of the script (Apex-like)",
        f"{own.num_all_reduces} all-reduces per step{volume}, launched inside the backward pass; "
        f"{ms(own.exposed_ns)} of {ms(own.comm_ns)} that no computation hides{flat}",
        "torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True): buckets in the order in which "
        "gradients come, no flattening and no copies back. ddpprof trace then tells buckets by parameter, late "
        "gradients and DDP's own work.",
        own.flatten_ns if o.worth(own.flatten_ns) else None,
    )
