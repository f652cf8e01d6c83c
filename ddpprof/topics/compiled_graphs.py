"""Detect compiled models whose graphs keep communication from overlapping with the backward pass.

    group     gradients that become ready together, because one compiled graph computes them
    waits     last gradient of a bucket - last gradient of the bucket's earlier groups

A compiled graph returns all its gradients when it ends. If the model is one graph, no communication can overlap with
its backward pass. Therefore, torch's DDPOptimizer splits the model into graphs. It ends the first graph at 1 MiB and
the remaining graphs at DDP's ``bucket_cap_mb``. DDP's first bucket, however, ends at 1 MiB only if ``bucket_cap_mb`` is
not given. If it is given, the buckets end inside graphs, and most buckets wait for the next graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from ddpprof.engine.finding import (
    Change,
    Finding,
    Predicted,
    compilation_change,
    ddp_change,
    hoped_for,
    only_known,
    size,
)
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.layout import Line, in_ms, ms, percent
from ddpprof.model import DdpModule, Rank, Record
from ddpprof.model.ddp_module import DEFAULT_CAP_MIB, DEFAULT_FIRST_CAP_MIB, MIB, CompileOrder, OptimizeDdp
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.buckets.steps import pass_fits

_GAP = 0.05
"""two gradients that become ready one after the other belong to different groups if the gap between them is longer than
this share of the time until the last gradient; used if `num_graphs` is unknown
"""
_TOGETHER = 0.25
"""gradients count as becoming ready in groups only if the durations of all groups add up to at most this share of the
time until the last gradient; otherwise, parts of the model are taken to be uncompiled
"""
_EARLY = 0.2
"""a bucket is reported as waiting if at least this share of its bytes comes from earlier graphs"""
_WANTED_GRAPHS = 8
"""number of graphs that a smaller bucket cap should produce"""
_LARGE = 0.3
"""a bucket with more than this share of all gradient bytes starts too late"""
_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class BucketWait:
    """A bucket with gradients from several compiled graphs."""

    bucket: int
    waits_ns: int
    """time from the last gradient of earlier graphs in the bucket to the last gradient of the bucket"""
    early_bytes: int
    """bytes of the bucket's gradients that come from earlier graphs, and therefore wait for the rest of the bucket"""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class CompiledGraphs:
    """How a DDP module is compiled, and when its gradients become ready.

    Times are medians, in ns since the end of the forward pass.
    """

    order: str
    """value of `CompileOrder`"""
    optimize_ddp: str
    """value of ``torch._dynamo.config.optimize_ddp``"""
    num_graphs: int | None
    """number of graphs into which DDPOptimizer split the model; 0 if no part of the model is compiled, ``None`` if
    unknown
    """
    groups_ns: tuple[int, ...] = ()
    """time at which the last gradient of each group is ready (a group: all gradients of one graph); empty if there are
    no groups
    """
    waits: tuple[BucketWait, ...] = ()
    """buckets with gradients from several groups, in launch order"""

    @property
    def waiting(self) -> BucketWait | None:
        """The first bucket with a large share of bytes that wait for another graph.

        Buckets that wait for less than half of the longest wait are ignored.
        """
        late = [one for one in self.waits if one.early_bytes >= _EARLY * one.num_bytes]
        longest_ns = max((one.waits_ns for one in late), default=0)
        return next((one for one in late if 2 * one.waits_ns >= longest_ns), None)


def measure_compiled_graphs(record: Record, modules: Sequence[DdpModule]) -> CompiledGraphs | None:
    """Measure one rank; return ``None`` if its DDP module is not compiled, or if it has several DDP modules."""
    found = record.compilation
    if found is None or len(modules) != 1:
        return None
    described = CompiledGraphs(found.order, found.optimize_ddp, found.num_graphs)
    ready_ns = _ready_ns(record, modules)
    groups = _groups(ready_ns, found.num_graphs) if ready_ns is not None else None
    if ready_ns is None or groups is None or found.order == CompileOrder.SUBMODULES:
        return described
    return CompiledGraphs(
        found.order,
        found.optimize_ddp,
        found.num_graphs,
        groups_ns=tuple(ready_ns[group[-1]] for group in groups),
        waits=tuple(_waits(modules[0], ready_ns, groups)),
    )


def _ready_ns(record: Record, modules: Sequence[DdpModule]) -> list[int] | None:
    """Return ready times of gradients in ns since the forward pass; ``None`` if unknown, as with the Python reducer."""
    passes = [one for step in record.training_steps for one in step.passes if pass_fits(modules, one)]
    times = [
        [ready - one.origin_ns for one in passes if (ready := one.ready_ns[index]) is not None]
        for index in range(len(modules[0].parameters))
    ]
    return [round(median(of_one)) for of_one in times] if times and all(times) else None


def _groups(ready_ns: Sequence[int], num_graphs: int | None) -> list[list[int]] | None:
    """Return groups of parameters whose gradients become ready together, in time order; ``None`` if there are none."""
    order = sorted(range(len(ready_ns)), key=lambda index: ready_ns[index])
    last_ns = ready_ns[order[-1]]
    gaps = [(ready_ns[after] - ready_ns[before], at) for at, (before, after) in enumerate(pairwise(order), 1)]
    if num_graphs:
        cuts = sorted(gaps, reverse=True)[: num_graphs - 1]
    else:
        cuts = [(gap_ns, at) for gap_ns, at in gaps if gap_ns > _GAP * last_ns]
    ends = [0, *sorted(at for _, at in cuts), len(order)]
    groups = [order[start:end] for start, end in pairwise(ends)]
    lasting_ns = sum(ready_ns[group[-1]] - ready_ns[group[0]] for group in groups)
    return groups if num_graphs != 0 and lasting_ns <= _TOGETHER * last_ns else None


def _waits(module: DdpModule, ready_ns: Sequence[int], groups: Sequence[Sequence[int]]) -> Iterator[BucketWait]:
    group_of = {parameter: number for number, group in enumerate(groups) for parameter in group}
    for index, parameters in enumerate(module.buckets):
        last = max(group_of[one] for one in parameters)
        early = [one for one in parameters if group_of[one] < last]
        if early:
            yield BucketWait(
                index,
                max(ready_ns[one] for one in parameters) - max(ready_ns[one] for one in early),
                sum(module.parameters[one].num_bytes for one in early),
                sum(module.parameters[one].num_bytes for one in parameters),
            )


def compiles_nothing(found: CompiledGraphs, _view: View) -> Iterator[Finding]:
    """Report that torch.compile is applied to the DDP module, but compiles no part of the model."""
    if found.num_graphs != 0 or found.order != CompileOrder.DDP_FIRST:
        return
    change = compilation_change(compile_order=CompileOrder.MODEL_FIRST)
    yield Finding(
        "compiled-graphs",
        "torch.compile compiles no part of the model",
        "torch.compile wraps DDP, but DDPOptimizer received no graph with parameters: torch.compile skips a model "
        "inside DDP if torch itself defines the model's forward(), as for nn.Sequential",
        f"Compile the model before DDP wraps it: {change.code}.",
        None,
        change=change,
        numbers=only_known(num_graphs=found.num_graphs),
    )


def one_graph(found: CompiledGraphs, view: View) -> Iterator[Finding]:
    """Report a model that is compiled as one graph: no communication can overlap with its backward pass."""
    if len(found.groups_ns) != 1 or not view.worth(view.exposed_ns):
        return
    is_cut = found.optimize_ddp == OptimizeDdp.DDP_OPTIMIZER
    change = _smaller_graphs(view) if is_cut else _cut(view)
    if change is None:
        return
    by_bucket = "let torch.compile split the model into one graph per bucket"
    smaller = "" if len(change.values) < 2 else ", and make the buckets smaller"
    cut = "split the model into smaller graphs" if is_cut else f"{by_bucket}{smaller}"
    yield Finding(
        "compiled-graphs",
        "The model is compiled as one graph, so no gradient is ready before its backward pass ends",
        f"all gradients become ready together, {in_ms(found.groups_ns[0])} after the end of the forward pass; "
        f"{in_ms(view.exposed_ns or 0)} of communication per step, from all buckets, is exposed",
        f"To overlap communication with computation, {cut}: {change.code}. {_compare(view)}",
        min(view.exposed_ns or 0, found.groups_ns[0]),
        cause_ns=view.exposed_ns,
        change=change,
        numbers=only_known(num_graphs=1, ready_ns=found.groups_ns[0], exposed_ns=view.exposed_ns),
    )


def bucket_of_several_graphs(found: CompiledGraphs, view: View) -> Iterator[Finding]:
    """Report a bucket that waits for the gradients of another graph."""
    wait, graphs = found.waiting, len(found.groups_ns)
    if wait is None or view.exposed_ns is None:
        return
    change, predicted = _aligned(found, view)
    gain_ns, predicted = hoped_for(min(view.exposed_ns, wait.waits_ns), predicted)
    if not view.worth(gain_ns, predicted):
        return
    yield Finding(
        "compiled-graphs",
        f"The compiled model is split into {graphs} graphs; bucket {wait.bucket} waits {in_ms(wait.waits_ns)} for a "
        "gradient of the next graph",
        f"gradients become ready in {graphs} groups, one per graph; {size(wait.early_bytes)} of the "
        f"{size(wait.num_bytes)} in bucket {wait.bucket} are ready as soon as the previous graph has ended. {_WHY}",
        f"Let buckets end where graphs end: {change.code}. {_compare(view)}",
        gain_ns,
        predicted=predicted,
        cause_ns=view.exposed_ns,
        subject={"bucket": wait.bucket},
        change=change,
        numbers=only_known(num_graphs=graphs, waiting_ns=wait.waits_ns, exposed_ns=view.exposed_ns),
    )


_WHY = (
    "torch.compile ends the first graph at 1 MiB and the remaining graphs at the bucket cap, but DDP's first bucket "
    "ends at 1 MiB only by default or with bucket_cap_mb_list"
)


def few_graphs(found: CompiledGraphs, view: View) -> Iterator[Finding]:
    """Report buckets that start late because their graphs are large."""
    if len(found.groups_ns) < 2 or found.optimize_ddp != OptimizeDdp.DDP_OPTIMIZER or found.waiting is not None:
        return
    rows, change = view[BUCKETS] or (), _smaller_graphs(view)
    total = sum(row.num_bytes or 0 for row in rows)
    largest = max(rows, key=lambda row: row.num_bytes or 0, default=None)
    if largest is None or change is None or view.exposed_ns is None or (largest.num_bytes or 0) < _LARGE * total:
        return
    gain_ns = min(view.exposed_ns, found.groups_ns[-1] - found.groups_ns[0])
    if not view.worth(gain_ns):
        return
    yield Finding(
        "compiled-graphs",
        f"The compiled model is split into only {len(found.groups_ns)} graphs, so communication starts late",
        f"bucket {largest.index} holds {size(largest.num_bytes or 0)} of {size(total)}, and its gradients become ready "
        f"together, {in_ms(largest.ready_ns or 0)} after the end of the forward pass; {in_ms(view.exposed_ns)} of "
        "communication per step is exposed",
        f"Split the model into smaller graphs that end where buckets end: {change.code}. {_compare(view)}",
        gain_ns,
        cause_ns=view.exposed_ns,
        subject={"bucket": largest.index},
        change=change,
        numbers=only_known(num_graphs=len(found.groups_ns), bucket_bytes=largest.num_bytes, exposed_ns=view.exposed_ns),
    )


def _compare(view: View) -> str:
    caps = ",".join(
        f"[1,{cap}]" if view.could_take_cap_lists else str(cap) for cap in (_small_cap(view.modules[0]), 25)
    )
    name = "bucket_cap_mb_list" if view.could_take_cap_lists else "bucket_cap_mb"
    return (
        "To compare the alternatives: ddpprof sweep --vary optimize_ddp=ddp_optimizer,no_optimization "
        f"--vary compile_order=ddp_first,model_first --vary {name}={caps}."
    )


def _cap_mib(module: DdpModule) -> float:
    return DEFAULT_CAP_MIB if module.bucket_cap_mb is None else module.bucket_cap_mb


def _small_cap(module: DdpModule) -> int:
    """Return the bucket cap, in MiB, that splits the model into about `_WANTED_GRAPHS` graphs."""
    return max(1, round(sum(one.num_bytes for one in module.parameters) / MIB / _WANTED_GRAPHS))


def _cut(view: View) -> Change:
    """Return the change that splits the model where buckets end, and shrinks the buckets if one holds most bytes."""
    cut, smaller = compilation_change(optimize_ddp=OptimizeDdp.DDP_OPTIMIZER), _smaller_graphs(view)
    sizes = [row.num_bytes or 0 for row in view[BUCKETS] or ()]
    if smaller is None or max(sizes, default=0) <= _LARGE * sum(sizes):
        return cut
    return replace(cut, values={**cut.values, **smaller.values}, code=f"{cut.code}, and {smaller.code}")


def _smaller_graphs(view: View) -> Change | None:
    """Return the change that makes graphs at most half as large; ``None`` if the graphs are already small."""
    cap, now = _small_cap(view.modules[0]), _cap_mib(view.modules[0])
    return _capped(view, cap) if cap <= now / 2 else None


def _capped(view: View, cap: float) -> Change:
    """Return the change that limits graphs and buckets to `cap` MiB, so that they end at the same parameters."""
    if view.could_take_cap_lists:
        return ddp_change(view.framework, bucket_cap_mb_list=(DEFAULT_FIRST_CAP_MIB, cap))
    return ddp_change(view.framework, bucket_cap_mb=cap)


def _aligned(found: CompiledGraphs, view: View) -> tuple[Change, Predicted | None]:
    """Return the change that makes buckets end where graphs end, and its predicted gain if the graphs do not change."""
    if found.optimize_ddp != OptimizeDdp.DDP_OPTIMIZER:
        return compilation_change(optimize_ddp=OptimizeDdp.DDP_OPTIMIZER), None
    smaller, now = _smaller_graphs(view), _cap_mib(view.modules[0])
    if not view.could_take_cap_lists:
        return ddp_change(view.framework, bucket_cap_mb=None), None
    if smaller is not None:
        return smaller, None
    return _capped(view, now), view.predictions.aligned_buckets


def compiled_lines(found: CompiledGraphs, _report: ReportView) -> Iterator[Line]:
    """Yield a line that says how the DDP module is compiled and when its gradients become ready."""
    order = _ORDERS.get(found.order, found.order)
    graphs = "" if not found.num_graphs else f", {found.num_graphs} graph{'s' if found.num_graphs > 1 else ''}"
    shown = ", ".join(map(ms, found.groups_ns[:_MOST_SHOWN])) + (", …" if len(found.groups_ns) > _MOST_SHOWN else "")
    ready = f" Times at which the groups of gradients are ready (ms): {shown}." if found.groups_ns else ""
    yield Line(f"Compiled: {order}, optimize_ddp={found.optimize_ddp}{graphs}.{ready}", is_aside=True)


_ORDERS: Mapping[str, str] = {
    CompileOrder.DDP_FIRST: "torch.compile around DDP",
    CompileOrder.MODEL_FIRST: "DDP around the compiled model",
    CompileOrder.SUBMODULES: "only submodules",
}


@dataclass(frozen=True, slots=True)
class Recompilations:
    """Compilations in and after the first recorded step of a run, on the rank that spends most time on them."""

    rank: int | None
    """the rank; ``None`` if code was compiled before the first recorded step only"""
    num_functions: int
    """number of functions that torch.compile compiled; a function that was compiled again counts again"""
    num_steps: int
    """number of steps"""
    taken_ns: int
    """time that torch.compile took, according to PyTorch's own timers"""
    share: float
    """`taken_ns` as a share of the duration of the run"""
    is_at_limit: bool
    """True if torch.compile stopped compiling a function on some rank, because it had been recompiled too often"""

    @property
    def take_long(self) -> bool:
        return self.num_functions >= _OFTEN and self.share >= _MUCH_OF_RUN


def find_recompilations(view: View) -> Recompilations | None:
    """Return the compilations of the run; ``None`` if it has none, or if its duration is unknown."""
    run, is_at_limit = view.whole_run, any(one.is_at_compile_limit for one in view.records.values())
    compiled = {rank: one.compiled_code for rank, one in view.records.items() if one.compiled_code is not None}
    if not compiled or run is None or not run.duration_ns:
        return Recompilations(None, 0, 0, 0, 0.0, is_at_limit) if is_at_limit else None
    rank, most = max(compiled.items(), key=lambda one: one[1].taken_ns)
    share = most.taken_ns / run.duration_ns
    return Recompilations(rank, most.num_functions, most.num_steps, most.taken_ns, share, is_at_limit)


def recompilations(found: Recompilations, _view: View) -> Iterator[Finding]:
    """Report code that torch.compile compiles again and again, for example for each new shape of its inputs."""
    if found.take_long:
        yield Finding(
            "recompilations",
            f"torch.compile compiles code again {found.num_functions} times in {found.num_steps} steps, which takes "
            f"{percent(found.share)} of the run",
            f"these compilations take {found.taken_ns / 1e9:.1f} s on rank {found.rank}, according to PyTorch's timers"
            f"{_STOPPED if found.is_at_limit else ''}",
            _DYNAMIC,
            found.taken_ns // max(found.num_steps, 1),
            is_in_few_steps=True,
            numbers=only_known(
                taken_ns=found.taken_ns,
                num_functions=found.num_functions,
                num_steps_apart=max(1.0, found.num_steps / found.num_functions),
            ),
        )
    elif found.is_at_limit:
        yield Finding(
            "recompilations",
            "torch.compile has stopped compiling a function, because it recompiled the function too often",
            "for new inputs, the function runs uncompiled, which is usually slower",
            _DYNAMIC,
            None,
            numbers=only_known(num_functions=found.num_functions or None),
        )


_OFTEN = 3
"""compilations are reported if there are at least this many, and they take at least `_MUCH_OF_RUN` of the run"""
_MUCH_OF_RUN = 0.05
"""compilations are reported only if they take at least this share of the run"""
_STOPPED = "; after that, a function runs uncompiled for new inputs, because torch.compile reached its limit"
_DYNAMIC = (
    "Set TORCH_LOGS=recompiles to see the reasons. If the shapes of the inputs vary, use "
    "torch.compile(…, dynamic=True), mark the varying dimension with torch._dynamo.mark_dynamic, or pad the inputs to "
    "a few lengths. If a number changes in every step, pass it as a tensor."
)

RECOMPILATIONS: Topic[Any, Recompilations] = Topic(
    "recompilations", rules=(recompilations,), of_run=find_recompilations
)

COMPILED_GRAPHS: Topic[CompiledGraphs, CompiledGraphs] = Topic(
    "compiled_graphs",
    rules=(compiles_nothing, one_graph, bucket_of_several_graphs, few_graphs),
    sections={"buckets": compiled_lines},
    of_rank=lambda rank, _steps, modules: _of_rank(rank, modules),
    rank_type=CompiledGraphs,
    of_ranks=lambda ranks: ranks[0],
)
"""compiled graphs of the first rank; the other ranks are assumed to compile in the same way"""


def _of_rank(rank: Rank, modules: Sequence[DdpModule]) -> CompiledGraphs | None:
    return None if rank.record is None else measure_compiled_graphs(rank.record, modules)
