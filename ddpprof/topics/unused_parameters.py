"""Find parameters and rows of embeddings without a gradient, and unnecessary searches for unused parameters.

Each rank records only its own backward passes. A parameter that rank 0 does not use may be used on another rank, and
vice versa, for example in a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec import structs

from ddpprof.engine.finding import (
    Finding,
    Predicted,
    at_most,
    ddp_change,
    hoped_for,
    only_known,
    size,
    sparse_embeddings_change,
)
from ddpprof.engine.frameworks import ddp_argument, without_ddp_argument
from ddpprof.engine.topic import Topic, View
from ddpprof.layout import count, in_ms
from ddpprof.model import DdpModule, Parameter, Rank
from ddpprof.topics.steps.breakdown import split_step
from ddpprof.words import listed


def as_all_ranks_use(modules: Sequence[DdpModule], ranks: Sequence[Sequence[DdpModule]]) -> tuple[DdpModule, ...]:
    """Return the modules with values that apply to all ranks: ``unused`` lists parameters that no rank used.

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
"""maximum number of parameters that a message names"""


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
                f"Remove the option: {without_ddp_argument(view.framework, 'find_unused_parameters')}. Keep the option "
                "only if other batches skip parts of the model.",
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
    """Return the maximum cost of the search, in ns: its own time, and the exposed communication.

    Without the search, DDP also rebuilds its buckets, and may thereby hide the communication.
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
                "graph stays the same throughout the training.",
                at_most(view.unused_search_ns, predicted),
                predicted=predicted,
                cause_ns=_search_and_communication_ns(view),
                subject={"module": module.name},
                change=ddp_change(view.framework, static_graph=True, find_unused_parameters=False),
                numbers=only_known(unused_search_ns=view.unused_search_ns, num_unused=len(module.unused)),
            )


_MUCH_LESS = 0.25
"""an embedding is reported if its sparse gradient has at most this share of the size of its dense gradient"""
_LARGE = 0.1
"""another optimizer is suggested if the gain is at least this fraction of the step"""
_INDEX_BYTES = 8
_NUM_PASSES = 3
"""number of times that the backward pass reads or writes a whole dense gradient: to set it to zero, to add the rows,
and to copy it into the bucket
"""
_BYTES_PER_NS = 5
"""speed at which the backward pass reads or writes a gradient"""
_GATHER_NS = 1_250_000
"""usual time in ns to reduce the sparse gradient of one embedding, for which gloo needs three exchanges"""
_LONGEST_GATHER_NS = 5_000_000
"""like `_GATHER_NS`, for ranks that use all cores, so gloo's threads wait until a core is free"""


def dense_embedding_gradients(modules: Sequence[DdpModule], view: View) -> Iterator[Finding]:
    """Report embeddings whose gradients are sent with all rows, although each step uses only a few rows.

    Only gloo is supported, because DDP cannot send sparse gradients with NCCL. Gloo gathers the sparse gradients of
    all ranks, whereas a ring all-reduce sends a dense gradient about twice. The predicted gain is

        saved bytes / all bytes × (exposed communication + optimizer) + saved passes over memory - sparse gathers
    """
    if view.backend != "gloo" or view.device != "cpu":
        return
    optimizers = [one for record in view.records.values() for one in record.optimizers or ()]
    takes_sparse = bool(optimizers) and all(one.takes_sparse for one in optimizers)
    for module in modules:
        all_bytes = sum(p.num_bytes for p in module.parameters)
        sparse_bytes = {p: _sparse_bytes(p, view.group_size or 1) for p in module.parameters if p.used_rows is not None}
        large = [p for p, num_bytes in sparse_bytes.items() if num_bytes <= _MUCH_LESS * p.num_bytes]
        saved_bytes = sum(p.num_bytes - sparse_bytes[p] for p in large)
        saved = saved_bytes / all_bytes if all_bytes else 0
        sent_ns = saved * ((view.exposed_ns or 0) + (view.optimizer_ns or 0))
        predicted = Predicted(
            round(sent_ns + saved_bytes * _NUM_PASSES / _BYTES_PER_NS / 2 - len(large) * _GATHER_NS),
            round(sent_ns - len(large) * _LONGEST_GATHER_NS),
            round(sent_ns + saved_bytes * _NUM_PASSES / _BYTES_PER_NS),
        )
        if module.comm_hook is not None or not view.worth(round(sent_ns), predicted):
            continue
        if not takes_sparse and predicted.low_ns < _LARGE * (view.step_ns or 0):
            continue  # not worth another optimizer
        most_bytes, rows = max((p.num_bytes, p.used_rows or 0) for p in large)
        yield Finding(
            "dense-embedding-gradients",
            f"The gradients of {listed([p.name for p in large], _MOST_NAMED)} are dense, but most rows are zero",
            f"{rows:.1%} of the rows of the largest embedding ({size(most_bytes)}) got a gradient in a step; with "
            f"sparse gradients, {1 - saved:.0%} of all bytes would remain",
            "Construct these layers with torch.nn.Embedding(…, sparse=True): DDP then sends only the rows that were "
            "used, and the optimizer updates only these rows. "
            + (
                "The optimizer accepts sparse gradients."
                if takes_sparse
                else "SGD and Adagrad without weight decay accept sparse gradients. So does torch.optim.SparseAdam, "
                "but it updates the moments of only those rows that were used."
            ),
            predicted.high_ns,
            predicted=predicted,
            cause_ns=predicted.high_ns,
            subject={"module": module.name, "parameter": large[0].name},
            change=sparse_embeddings_change() if takes_sparse else None,
            numbers=only_known(embedding_bytes=most_bytes, saved_bytes=round(saved_bytes)),
        )


def _sparse_bytes(parameter: Parameter, num_ranks: int) -> float:
    """Return the size of a dense gradient that takes as long to all-reduce as the sparse gradients take to gather."""
    row_bytes = parameter.num_bytes / parameter.shape[0]
    return num_ranks / 2 * (parameter.used_rows or 0) * parameter.num_bytes * (1 + _INDEX_BYTES / row_bytes)


@dataclass(frozen=True, slots=True)
class UntrainedTail:
    """How long autograd computes only gradients of untrained parameters at the end of a backward pass."""

    ns: int | None
    """median duration over backward passes; on an accelerator, of its computation only; ``None`` if unknown"""


def measure_untrained_tail(rank: Rank, steps: Sequence[int], modules: Sequence[DdpModule]) -> UntrainedTail | None:
    """Return the tail; ``None`` if the rank has no untrained parameters. `steps`: indices of the profiled steps.

    tail = last gradient of the module - last gradient of a trained parameter
    """
    record, trace = rank.record, rank.trace
    if record is None or not record.untrained:
        return None
    names = {name for one in record.untrained if one.is_wrapped for name in one.names}
    tails, shares = [], []
    for one in (one for step in record.training_steps for one in step.passes if one.module < len(modules)):
        parameters = modules[one.module].parameters
        known = {parameter.name: ns for parameter, ns in zip(parameters, one.ready_ns, strict=False) if ns is not None}
        trained_ns = max((ns for name, ns in known.items() if name not in names), default=None)
        last_ns = one.last_ready_ns
        if trained_ns is not None and last_ns is not None and not names.isdisjoint(known):
            tails.append(last_ns - trained_ns)
            shares.append(tails[-1] / max(1, last_ns - one.origin_ns))
    if not tails or trace is None or trace.device == "cpu":
        return UntrainedTail(round(median(tails)) if tails else None)
    backward_ns = [split.breakdown.backward_ns for step in steps if (split := split_step(trace, step)) is not None]
    return UntrainedTail(round(median(shares) * median(backward_ns)) if backward_ns else None)


def untrained_parameters(tails: Sequence[UntrainedTail], view: View) -> Iterator[Finding]:
    """Report parameters that get gradients but are not trained by any optimizer.

    The gain is an upper bound: the time in which autograd computes only their gradients at the end of the backward
    pass, plus the rest of the step times their share of the bytes of all parameters.
    """
    unused = {name for module in view.modules for name in module.unused or ()}
    of_ddp = sum(parameter.num_bytes for module in view.modules for parameter in module.parameters)
    tail_ns = min((one.ns for one in tails if one.ns is not None), default=0)
    for one in next((record.untrained for record in view.records.values() if record.untrained), ()):
        all_bytes = of_ddp if one.is_wrapped else of_ddp + one.num_bytes
        before_ns = min(tail_ns, view.step_ns or 0) if one.is_wrapped else 0
        gain_ns = before_ns + round(((view.step_ns or 0) - before_ns) * min(1.0, one.num_bytes / max(all_bytes, 1)))
        if (one.is_wrapped and unused.intersection(one.names)) or not view.worth(gain_ns):
            continue
        is_one = len(one.names) == 1
        they, them, their, are = ("it", "it", "its", "is") if is_one else ("they", "them", "their", "are")
        whose = f"{one.module or 'the script'}{'' if one.is_wrapped else ' outside DDP'}"
        why = f"{their} learning rate is 0" if one.has_no_rate else f"no optimizer has {them}"
        tail = f"; the last {in_ms(before_ns)} of the backward pass compute only {their} gradients" if before_ns else ""
        yield Finding(
            "untrained-parameters",
            f"{count(len(one.names), 'parameter')} of {whose} {'gets a gradient' if is_one else 'get gradients'}, but "
            f"{why}: {listed(one.names, _MOST_NAMED)}",
            f"{they} {are} {size(one.num_bytes)} of {size(all_bytes)}; no value changed in the recorded steps"
            f"{', although DDP reduces the gradients' if one.is_wrapped else ''}{tail}",
            (_FREEZE if one.is_wrapped else _WITHOUT_GRADIENTS).format(they=they, their=their, them=them)
            + (_GIVE_RATE if one.has_no_rate else _PASS_ON[one.is_wrapped]).format(they=they, their=their, them=them),
            gain_ns,
            may_be_meant=True,
            subject={"module": one.module, "parameter": one.names[0]},
            numbers=only_known(
                num_untrained=len(one.names), untrained_bytes=one.num_bytes, parameter_bytes=all_bytes,
                backward_ns=before_ns or None,
            ),
        )  # fmt: skip


_FREEZE = (
    "If {they} should not be trained, freeze {them} before wrapping the model (parameter.requires_grad_(False)): "
    "{their} gradients are then neither computed nor sent."
)
_WITHOUT_GRADIENTS = (
    "If {they} should not be trained, as in a teacher or a frozen encoder, run the module under torch.no_grad(), or "
    "freeze {them} with requires_grad_(False): {their} gradients are then not computed."
)
_PASS_ON = (
    " Otherwise, pass {them} to an optimizer, and wrap the module in DDP.",
    " Otherwise, pass {them} to the optimizer.",
)
_GIVE_RATE = " Otherwise, set a learning rate other than 0 for {their} group."


def double_precision(modules: Sequence[DdpModule], view: View) -> Iterator[Finding]:
    """Report models with 64-bit parameters: their gradients are twice as large as usual, and computation is slower.

    On CPU, computation takes about twice as long as with 32 bits. On accelerators, the ratio may be much larger.
    """
    parameters = [parameter for module in modules for parameter in module.parameters]
    doubles = [one for one in parameters if one.dtype == "float64"]
    all_bytes, in_double = (sum(one.num_bytes for one in some) for some in (parameters, doubles))
    if not doubles or in_double < all_bytes / 2:
        return
    yield Finding(
        "double-precision",
        f"{len(doubles)} of {len(parameters)} parameters are 64-bit (torch.float64)",
        f"they take {size(in_double)} of {size(all_bytes)}; 64-bit gradients take twice as long to send as 32-bit "
        "gradients, and 64-bit operators are at least twice as slow",
        "If 32 bits are enough, convert the model and its inputs: model.float() and inputs.float(). NumPy arrays are "
        "64-bit unless a dtype is given, and a model may have been converted with double() to accept them.",
        round(view.step_ns / 2) if view.step_ns is not None and view.device == "cpu" else None,
        may_be_meant=True,
        subject={"parameter": doubles[0].name},
        numbers=only_known(num_double=len(doubles), double_bytes=in_double, parameter_bytes=all_bytes),
    )


UNUSED_PARAMETERS: Topic[None, tuple[DdpModule, ...]] = Topic(
    "unused_parameters",
    rules=(unused_parameters, double_precision, static_graph, dense_embedding_gradients),
    of_run=lambda view: view.modules,
)
UNTRAINED: Topic[UntrainedTail, tuple[UntrainedTail, ...]] = Topic(
    "untrained", rules=(untrained_parameters,), of_rank=measure_untrained_tail, rank_type=UntrainedTail, of_ranks=tuple
)
