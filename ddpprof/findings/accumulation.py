"""Rules about gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.finding import Finding, Observed, hoped_for, in_ms, size
from ddpprof.findings.framework_words import reduce_once


def reduces_every_pass(o: Observed) -> Iterator[Finding]:
    """Report gradients that accumulate over several backward passes but are all-reduced in each of them."""
    for one in o.accumulation:
        module = o.module(one.module)
        if module is None:
            continue
        share = one.num_superfluous / one.num_passes
        most_ns = None if o.exposed_ns is None else round(o.exposed_ns * share)
        gain_ns, predicted = hoped_for(most_ns, o.predictions.no_sync)
        if not o.worth(most_ns, predicted):
            continue
        known = [module.bucket_bytes(index) for index in range(len(module.buckets))]
        sizes = [num_bytes for num_bytes in known if num_bytes is not None]
        sent = f"{size(sum(sizes))} in " if len(sizes) == len(known) else ""
        is_static = bool(module.settings.get("static_graph"))
        exposed = "" if o.exposed_ns is None else f"; {in_ms(o.exposed_ns)} of communication per step are exposed"
        yield Finding(
            "reduces-every-pass",
            f"Gradients accumulate over {one.num_passes} backward passes, and every pass all-reduces them",
            f"each pass sends {sent}{_buckets(len(module.buckets))}, but the optimizer uses only the "
            f"result of the last pass, in {one.num_steps} recorded steps{exposed}",
            f"{reduce_once(o.framework, is_static)} Code that reads gradients between the passes, such as clipping, "
            "then sees each rank's own gradients.",
            gain_ns,
            predicted=predicted,
            cause_ns=o.exposed_ns,
        )


def _buckets(number: int) -> str:
    return "1 bucket" if number == 1 else f"{number} buckets"
