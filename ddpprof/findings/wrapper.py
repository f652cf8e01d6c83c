"""Rules about DDP's work besides gradient communication: unused parameters, buffers and copies."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.change import ddp_change
from ddpprof.findings.finding import Finding, Observed, at_most, hoped_for, in_ms, size
from ddpprof.findings.framework_words import ddp_argument, without_ddp_argument
from ddpprof.model import DdpModule
from ddpprof.words import listed

_MOST_NAMED = 5
"""number of parameters"""


def _searches(module: DdpModule) -> bool:
    return bool(module.settings.get("find_unused_parameters")) and not module.settings.get("static_graph")


def unused_parameters(o: Observed) -> Iterator[Finding]:
    """Report a search for unused parameters that finds nothing, or name the unused parameters that it finds."""
    for module in o.modules:
        if module.unused is None:
            continue
        if _uses_everything(module) and _searches(module):
            gain_ns, predicted = hoped_for(o.unused_search_ns, o.predictions.without_unused_search)
            cost = "" if o.unused_search_ns is None else f"the search takes {in_ms(o.unused_search_ns)} per step, "
            yield Finding(
                "find-unused-for-nothing",
                "find_unused_parameters=True, but every parameter was used",
                f"every parameter of {module.name} got a gradient in {_passes(module)}; {cost}one more all-reduce "
                "follows it, and DDP does not rebuild its buckets in the order of gradients",
                f"Leave it out: {without_ddp_argument(o.framework, 'find_unused_parameters')}. Keep it only if other "
                "batches skip parts of the model.",
                gain_ns,
                predicted=predicted,
                cause_ns=_search_and_communication_ns(o),
                subject={"module": module.name},
                change=ddp_change(o.framework, find_unused_parameters=False),
            )
        elif module.unused:
            unused = set(module.unused)
            lost = sum(p.num_bytes for p in module.parameters if p.name in unused)
            all_bytes = sum(p.num_bytes for p in module.parameters)
            sent = "" if module.settings.get("skip_all_reduce_unused_params") else ", all-reduced for nothing"
            is_one = len(module.unused) == 1
            them, static = "it" if is_one else "them", ""
            if _searches(module) and module.graph_is_static and o.num_micro_steps == 1:
                static = f" If {'it is' if is_one else 'they are'} never used, static_graph=True avoids the search."
            yield Finding(
                "unused-parameters",
                f"{'1 parameter' if is_one else f'{len(module.unused)} parameters'} got no gradient in "
                f"{_passes(module)}: {listed(module.unused, _MOST_NAMED)}",
                f"{'it is' if is_one else 'they are'} {size(lost)} of {size(all_bytes)}{sent}",
                f"If no other batch uses {them}, freeze {them} before wrapping (parameter.requires_grad_(False)) or "
                f"remove {them}.{static}",
                None,
                subject={"module": module.name, "parameter": module.unused[0]},
            )


def _uses_everything(module: DdpModule) -> bool:
    """Return whether every pass gave every parameter a gradient; alternating branches only do so in some passes."""
    if module.num_lacking_passes is None:
        return module.unused == () and bool(module.graph_is_static)
    return module.num_lacking_passes == 0


def _search_and_communication_ns(o: Observed) -> int | None:
    """Return what a search costs at most: without it, DDP also rebuilds its buckets, which may hide communication."""
    known = [ns for ns in (o.unused_search_ns, o.exposed_ns) if ns is not None]
    return sum(known) if len(known) == 2 else None


def _passes(module: DdpModule) -> str:
    number = module.num_searched_passes
    return f"any of {number} recorded backward passes" if number > 1 else "the recorded backward pass"


def static_graph(o: Observed) -> Iterator[Finding]:
    """Report a search for unused parameters that finds the same ones every time.

    Not if gradients accumulate: with a static graph, torch fails if the first backward pass does not reduce them.
    """
    predicted = o.predictions.without_unused_search
    if o.num_micro_steps > 1 or not o.unused_search_ns or not o.worth(o.unused_search_ns, predicted):
        return
    for module in o.modules:
        if _searches(module) and module.unused and module.graph_is_static:
            yield Finding(
                "static-graph",
                "The set of unused parameters never changes, yet every step searches for it",
                f"torch reports a static graph; the search takes {in_ms(o.unused_search_ns)} per step",
                f"{ddp_argument(o.framework, 'static_graph=True')} instead of find_unused_parameters=True, if the "
                "graph is the same for the whole training.",
                at_most(o.unused_search_ns, predicted),
                predicted=predicted,
                cause_ns=_search_and_communication_ns(o),
                subject={"module": module.name},
                change=ddp_change(o.framework, static_graph=True, find_unused_parameters=False),
            )


def buffers_broadcast(o: Observed) -> Iterator[Finding]:
    """Report buffers, such as BatchNorm's running statistics, that rank 0 sends before each synchronised forward."""
    known = o.modules_with_buffer_syncs
    synchronised = [m for index, m in enumerate(o.modules) if known is None or index in known]
    modules = [m for m in synchronised if m.settings.get("broadcast_buffers") and m.num_buffers]
    if o.world_size == 1 or not modules or not o.worth(o.buffer_sync_ns):
        return
    batch_norms = sum(m.num_batch_norms for m in modules)
    number = sum(m.num_buffers for m in modules)
    others = number - sum(map(_num_of_batch_norms, modules))
    what = (
        f"{batch_norms} BatchNorm layer{'s' if batch_norms > 1 else ''}"
        if not others
        else ", ".join(m.name for m in modules)
    )
    buffers = f"1 buffer of {what} is" if number == 1 else f"{number} buffers of {what} are"
    yield Finding(
        "buffers-broadcast",
        f"{buffers} broadcast before {_forwards(o)}",
        f"{size(sum(m.buffer_bytes for m in modules))} take {in_ms(o.buffer_sync_ns or 0)} per step, and every rank "
        "waits for rank 0",
        f"{_without_broadcast(o.framework)}. " + _if_they_may_differ(others, number),
        o.buffer_sync_ns,
        change=ddp_change(o.framework, broadcast_buffers=False),
    )


def _num_of_batch_norms(module: DdpModule) -> int:
    known = module.num_buffers_of_batch_norms
    if known is not None:
        return known
    return module.num_buffers if module.num_batch_norms else 0


def _if_they_may_differ(others: int, number: int) -> str:
    """Return on what leaving out the broadcast depends. `others`: number of buffers that are not BatchNorm's."""
    statistics = (
        "Training does not use running statistics, but each rank then keeps its own: evaluate and save on rank 0."
    )
    if not others:
        return statistics
    them = "them" if others == number else f"the {others} buffer{'s' if others > 1 else ''} outside BatchNorm"
    limit = f"Do this only if the forward does not change {them}, or if those may differ between ranks."
    return limit if others == number else f"{limit} {statistics}"


def _forwards(o: Observed) -> str:
    if o.num_buffer_syncs >= o.num_forwards:
        return "every forward"
    return f"{o.num_buffer_syncs} of {o.num_forwards} forwards in a step"


def _without_broadcast(framework: str | None) -> str:
    """Return how to leave out the broadcast before forwards. The older option leaves out that at wrapping, too."""
    alike = "if all ranks start with the same buffers"
    if framework in ("accelerate", "transformers"):
        return f"{ddp_argument(framework, 'broadcast_buffers=False')}, {alike}"
    return (
        f"{ddp_argument(framework, 'forward_sync_buffers=False')} (before torch 2.13: broadcast_buffers=False, {alike})"
    )


def gradient_copies(o: Observed) -> Iterator[Finding]:
    """Report buckets that are copied back into ``.grad``, which could be views of them instead."""
    modules = [m for m in o.modules if not m.settings.get("gradient_as_bucket_view")]
    predicted = o.predictions.bucket_views
    if not modules or not o.copy_out_ns or not o.worth(o.copy_out_ns, predicted):
        return
    memory = sum(p.num_bytes for m in modules for p in m.parameters)
    yield Finding(
        "gradient-copies",
        "Reduced gradients are copied out of their buckets",
        f"{in_ms(o.copy_out_ns)} per step, and {size(memory)} of memory",
        f"{ddp_argument(o.framework, 'gradient_as_bucket_view=True')}. Code that calls grad.detach_() rules it out.",
        at_most(o.copy_out_ns, predicted),
        predicted=predicted,
        cause_ns=o.copy_out_ns,
        change=ddp_change(o.framework, gradient_as_bucket_view=True),
    )
