"""Rules about what DDP does beside communicating gradients: unused parameters, buffers, copies."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.events import DdpModule
from ddpprof.findings.finding import Finding, Observed, at_most, hoped_for, ms, names, size


def _searches(module: DdpModule) -> bool:
    return bool(module.settings.get("find_unused_parameters")) and not module.settings.get("static_graph")


def unused_parameters(o: Observed) -> Iterator[Finding]:
    """The search for unused parameters, where it finds nothing; the unused ones by name, where it does."""
    for module in o.modules:
        if module.unused is None:
            continue
        if not module.unused and _searches(module):
            gain_ns, predicted = hoped_for(o.unused_search_ns, o.predictions.static_graph)
            cost = "" if o.unused_search_ns is None else f"the search takes {ms(o.unused_search_ns)} per step, "
            yield Finding(
                "find-unused-for-nothing",
                "find_unused_parameters=True, but every parameter is used",
                f"no parameter of {module.name} was without gradient in any recorded step; {cost}one more all-reduce "
                "follows it, and DDP does not rebuild its buckets in the order of gradients",
                "Leave it out: DistributedDataParallel(model). Keep it only if other batches skip parts of the model.",
                gain_ns,
                predicted=predicted,
            )
        elif module.unused:
            lost = sum(p.num_bytes for p in module.parameters if p.name in set(module.unused))
            all_bytes = sum(p.num_bytes for p in module.parameters)
            sent = "" if module.settings.get("skip_all_reduce_unused_params") else ", all-reduced for nothing"
            static = ""
            if _searches(module) and module.graph_is_static:
                static = " If they never are used, static_graph=True spares the search."
            yield Finding(
                "unused-parameters",
                f"{len(module.unused)} parameters never get a gradient: {names(module.unused)}",
                f"they are {size(lost)} of {size(all_bytes)}{sent}",
                f"Freeze them before wrapping (parameter.requires_grad_(False)) or remove them.{static}",
                None,
            )


def static_graph(o: Observed) -> Iterator[Finding]:
    """The search for unused parameters finds the same ones every time."""
    predicted = o.predictions.static_graph
    if not o.unused_search_ns or not o.worth(o.unused_search_ns, predicted):
        return
    for module in o.modules:
        if _searches(module) and module.unused and module.graph_is_static:
            yield Finding(
                "static-graph",
                "The set of unused parameters never changes, yet it is searched for in every step",
                f"torch reports a static graph; the search takes {ms(o.unused_search_ns)} per step",
                "DistributedDataParallel(model, static_graph=True) instead of find_unused_parameters=True, if the "
                "graph is the same for the whole training.",
                at_most(o.unused_search_ns, predicted),
                predicted=predicted,
            )


def buffers_broadcast(o: Observed) -> Iterator[Finding]:
    """Buffers (BatchNorm's running statistics) are sent from rank 0 before every forward."""
    modules = [m for m in o.modules if m.settings.get("broadcast_buffers") and m.num_buffers]
    if not modules or not o.worth(o.buffer_sync_ns):
        return
    batch_norms = sum(m.num_batch_norms for m in modules)
    what = (
        f"{batch_norms} BatchNorm layer{'s' if batch_norms > 1 else ''}"
        if batch_norms
        else ", ".join(m.name for m in modules)
    )
    yield Finding(
        "buffers-broadcast",
        f"{sum(m.num_buffers for m in modules)} buffers of {what} are broadcast before every forward",
        f"{size(sum(m.buffer_bytes for m in modules))} take {ms(o.buffer_sync_ns or 0)} per step, and every rank "
        "waits for rank 0",
        "DistributedDataParallel(model, forward_sync_buffers=False) (before torch 2.13: broadcast_buffers=False). "
        + (
            "Training does not use running statistics, but ranks then keep their own: evaluate and save from rank 0."
            if batch_norms
            else "Only if the forward does not change them, or if ranks may differ in them."
        ),
        o.buffer_sync_ns,
    )


def gradient_copies(o: Observed) -> Iterator[Finding]:
    """Buckets are copied back into ``.grad``, which could be views of them."""
    modules = [m for m in o.modules if not m.settings.get("gradient_as_bucket_view")]
    predicted = o.predictions.bucket_views
    if not modules or not o.copy_out_ns or not o.worth(o.copy_out_ns, predicted):
        return
    memory = sum(p.num_bytes for m in modules for p in m.parameters)
    yield Finding(
        "gradient-copies",
        "Reduced gradients are copied out of their buckets",
        f"{ms(o.copy_out_ns)} per step, and {size(memory)} of memory",
        "DistributedDataParallel(model, gradient_as_bucket_view=True). Not with code that calls grad.detach_().",
        at_most(o.copy_out_ns, predicted),
        predicted=predicted,
    )
