"""Find parameters that got no gradient on any rank, and unnecessary searches for unused parameters.

Each rank records only its own backward passes. A parameter that rank 0 does not use may be used on another rank, and
vice versa, for example in a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from ddpprof.engine.finding import Finding, at_most, ddp_change, hoped_for, only_known, size
from ddpprof.engine.frameworks import ddp_argument, without_ddp_argument
from ddpprof.engine.topic import Topic, View
from ddpprof.layout import in_ms
from ddpprof.model import DdpModule
from ddpprof.words import listed


def as_all_ranks_use(modules: Sequence[DdpModule], ranks: Sequence[Sequence[DdpModule]]) -> tuple[DdpModule, ...]:
    """Return the modules with the values combined over all ranks: ``unused`` lists parameters that no rank used.

    `ranks`: the modules as recorded by each rank; all ranks have the same modules in the same order. Ranks that did not
    record unused parameters, for example because they were killed, are ignored.
    """
    return tuple(
        _as_used(module, [uses[index] for uses in ranks if len(uses) == len(modules)])
        for index, module in enumerate(modules)
    )


def _as_used(module: DdpModule, ranks: Sequence[DdpModule]) -> DdpModule:
    if not ranks:
        return module
    unused = [one.unused for one in ranks if one.unused is not None]
    lacking = [one.num_lacking_passes for one in ranks if one.num_lacking_passes is not None]
    static = [one.graph_is_static for one in ranks]
    by_no_rank = set.intersection(*map(set, unused)) if unused else None
    return structs.replace(
        module,
        unused=None if by_no_rank is None else tuple(name for name in unused[0] if name in by_no_rank),
        graph_is_static=None if None in static else all(static),
        num_searched_passes=min(one.num_searched_passes for one in ranks),
        num_lacking_passes=max(lacking) if len(lacking) == len(ranks) else None,
    )


_MOST_NAMED = 5
"""maximum number of parameters in a message"""


def searches(module: DdpModule) -> bool:
    """Return whether DDP searches for unused parameters in every backward pass."""
    return bool(module.settings.get("find_unused_parameters")) and not module.settings.get("static_graph")


def unused_parameters(modules: Sequence[DdpModule], view: View) -> Iterator[Finding]:
    """Report parameters without a gradient, or a search for unused parameters that finds none."""
    for module in modules:
        if module.unused is None:
            continue
        if uses_everything(module) and searches(module):
            gain_ns, predicted = hoped_for(view.unused_search_ns, view.predictions.without_unused_search)
            if predicted is not None and predicted.low_ns <= 0:
                gain_ns = predicted = None  # report it, but promise nothing
            cost = (
                "" if view.unused_search_ns is None else f"the search takes {in_ms(view.unused_search_ns)} per step, "
            )
            yield Finding(
                "find-unused-for-nothing",
                "find_unused_parameters=True, but every parameter was used",
                f"every parameter of {module.name} got a gradient in {_passes(module)}; {cost}DDP sends one more "
                "all-reduce per backward pass, and does not rebuild its buckets in the order in which gradients "
                "become ready",
                f"Remove the option: {without_ddp_argument(view.framework, 'find_unused_parameters')}. Keep it only if "
                "other batches skip parts of the model.",
                gain_ns,
                predicted=predicted,
                cause_ns=_search_and_communication_ns(view),
                subject={"module": module.name},
                change=ddp_change(view.framework, find_unused_parameters=False),
                numbers=only_known(unused_search_ns=view.unused_search_ns, num_passes=module.num_searched_passes),
            )
        elif module.unused:
            unused = set(module.unused)
            lost = sum(p.num_bytes for p in module.parameters if p.name in unused)
            all_bytes = sum(p.num_bytes for p in module.parameters)
            sent = "" if module.settings.get("skip_all_reduce_unused_params") else ", all-reduced unnecessarily"
            is_one = len(module.unused) == 1
            them, static = "it" if is_one else "them", ""
            if searches(module) and module.graph_is_static and view.num_micro_steps == 1:
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
                numbers=only_known(num_unused=len(module.unused), unused_bytes=lost, parameter_bytes=all_bytes),
            )


def uses_everything(module: DdpModule) -> bool:
    """Return whether every parameter got a gradient in every backward pass."""
    if module.num_lacking_passes is None:
        return module.unused == () and bool(module.graph_is_static)
    return module.num_lacking_passes == 0


def _search_and_communication_ns(view: View) -> int | None:
    """Return the maximum cost of the search, ns: its own time, and the exposed communication.

    Without the search, DDP also rebuilds its buckets, which may hide the communication.
    """
    known = [ns for ns in (view.unused_search_ns, view.exposed_ns) if ns is not None]
    return sum(known) if len(known) == 2 else None


def _passes(module: DdpModule) -> str:
    number = module.num_searched_passes
    return f"any of {number} recorded backward passes" if number > 1 else "the recorded backward pass"


def static_graph(modules: Sequence[DdpModule], view: View) -> Iterator[Finding]:
    """Report a search for unused parameters that finds the same parameters in every step.

    Nothing is reported if gradients accumulate, because torch fails with a static graph if the first backward pass does
    not reduce gradients.
    """
    predicted = view.predictions.without_unused_search
    if view.num_micro_steps > 1 or not view.unused_search_ns or not view.worth(view.unused_search_ns, predicted):
        return
    for module in modules:
        if searches(module) and module.unused and module.graph_is_static:
            yield Finding(
                "static-graph",
                "The set of unused parameters never changes, yet DDP searches for it in every step",
                f"torch reports a static graph; the search takes {in_ms(view.unused_search_ns)} per step",
                f"{ddp_argument(view.framework, 'static_graph=True')} instead of find_unused_parameters=True, if the "
                "graph is the same for the whole training.",
                at_most(view.unused_search_ns, predicted),
                predicted=predicted,
                cause_ns=_search_and_communication_ns(view),
                subject={"module": module.name},
                change=ddp_change(view.framework, static_graph=True, find_unused_parameters=False),
                numbers=only_known(unused_search_ns=view.unused_search_ns, num_unused=len(module.unused)),
            )


UNUSED_PARAMETERS: Topic[None, tuple[DdpModule, ...]] = Topic(
    "unused_parameters", rules=(unused_parameters, static_graph), of_run=lambda view: view.modules
)
