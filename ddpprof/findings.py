"""Rules: what was measured → what to change, and how much it could give back.

A rule is a function of `Observed`; it yields findings, or nothing where it does not apply or where the measures that it
needs are absent. `RULES` is the list. Gains are upper bounds of what one change alone recovers: two findings that
explain the same milliseconds do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddpprof.events import DdpModule, Loader
from ddpprof.measures.bucket_table import BucketSummary

_WORTH_SAYING = 0.01
"""Findings below this fraction of the step are left out."""
_MIB = 2**20
_DEFAULT_CAP_MB = 25
"""torch's ``_DEFAULT_BUCKET_CAP_MB``"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change."""

    rule: str
    title: str
    evidence: str
    advice: str
    gain_ns: int | None
    """per step, at most; ``None`` for what costs correctness or cannot be told from this run"""
    is_correctness: bool = False
    """training does something else than it seems to, whatever the time"""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the rules look at. Times are ns per step: medians over steps, of the rank where they are least."""

    world_size: int | None
    step_ns: int | None
    backend: str | None = None
    modules: tuple[DdpModule, ...] = ()
    buckets: tuple[BucketSummary, ...] = ()
    comm_ns: int | None = None
    exposed_ns: int | None = None
    trailing_ns: int | None = None
    data_ns: int | None = None
    buffer_sync_ns: int | None = None
    unused_search_ns: int | None = None
    copy_out_ns: int | None = None
    loaders: Mapping[int, tuple[Loader, ...]] = field(default_factory=dict)
    """rank → its data loaders"""
    checkpoints: Mapping[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """rank → its host and the paths that it saved"""

    def worth(self, gain_ns: int | None) -> bool:
        return bool(gain_ns) and bool(self.step_ns) and (gain_ns or 0) >= _WORTH_SAYING * (self.step_ns or 0)


Rule = Callable[[Observed], Iterator[Finding]]


def find(observed: Observed) -> tuple[Finding, ...]:
    """Every finding, by what it could give back, most first; those without a gain last."""
    findings = [finding for rule in RULES for finding in rule(observed)]
    return tuple(sorted(findings, key=lambda f: -1 if f.gain_ns is None else f.gain_ns, reverse=True))


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.1f} kB"


def _names(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _gradient_buckets(observed: Observed) -> Iterator[tuple[DdpModule, tuple[BucketSummary, ...]]]:
    for index, module in enumerate(observed.modules):
        buckets = tuple(b for b in observed.buckets if b.module == index)
        if buckets:
            yield module, buckets


def _total_bytes(buckets: Sequence[BucketSummary]) -> int:
    return sum(b.num_bytes for b in buckets)


def _cap_mb(module: DdpModule) -> float:
    cap = module.settings.get("bucket_cap_mb")
    return float(cap) if isinstance(cap, int | float) else float(_DEFAULT_CAP_MB)


def _is_rebuilt(module: DdpModule) -> bool:
    """Whether DDP fills its buckets anew, in the order in which gradients came in the first backward pass."""
    return bool(module.settings.get("static_graph")) or not module.settings.get("find_unused_parameters")


def _buckets_under(module: DdpModule, caps_mib: Sequence[float]) -> list[int]:
    """Bytes of the buckets that DDP would make, in launch order; the last cap holds for all that follow.

    As torch's ``compute_bucket_assignment_by_size``: a bucket is closed once it has *reached* its cap, and no parameter
    is ever divided. Without a rebuild DDP goes by the order of definition, and then turns the buckets around.
    """
    rebuilt = _is_rebuilt(module)
    order = [p for bucket in module.buckets for p in bucket] if rebuilt else range(len(module.parameters))
    sizes = [0]
    for parameter in order:
        cap = caps_mib[min(len(sizes), len(caps_mib)) - 1]
        if sizes[-1] >= cap * _MIB:
            sizes.append(0)
        sizes[-1] += module.parameters[parameter].num_bytes
    return sizes if rebuilt else sizes[::-1]


def _smaller_cap(module: DdpModule, buckets: Sequence[BucketSummary]) -> int:
    cap = min(_cap_mb(module), max(b.num_bytes for b in buckets) / _MIB)
    return max(1, round(cap / 4))


_CUT = 0.8
"""A smaller cap that leaves a bucket above this part of its size is no advice: one parameter makes up the bucket."""


def trailing_communication(o: Observed) -> Iterator[Finding]:
    """Communication that goes on after the backward pass: the last bucket is late, or the link is the bottleneck."""
    if o.trailing_ns is None or not o.worth(o.trailing_ns):
        return
    for module, buckets in _gradient_buckets(o):
        transfers = [b.transfer_ns for b in buckets if b.transfer_ns is not None]
        ready = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if len(transfers) < len(buckets) or len(ready) < len(buckets):
            continue
        comm, window, last = sum(transfers), max(ready) - min(ready), buckets[-1]
        cap = _smaller_cap(module, buckets)
        left = _buckets_under(module, [cap])[-1] / max(last.num_bytes, 1)
        evidence = (
            f"{_ms(o.trailing_ns)} of gradient communication per step runs after the last backward op on every rank; "
            f"all buckets ({len(buckets)}) need {_ms(comm)} of transfer, and {_ms(window)} of backward were left to "
            "hide it once the first was ready"
        )
        if len(buckets) > 1 and comm - transfers[-1] > window:
            title = "The link is the bottleneck: gradients take longer to send than the backward pass can hide"
            advice, gain = _fewer_bytes(o, module), min(o.trailing_ns, comm // 2)
        elif len(buckets) > 1 and left <= _CUT:
            title = f"The last bucket ({_size(last.num_bytes)}) is sent when nothing is left to hide it"
            evidence += f"; the last bucket alone takes {_ms(transfers[-1])}"
            advice = (
                f"Make the last bucket smaller: DistributedDataParallel(model, bucket_cap_mb={cap}) leaves "
                f"{_size(left * last.num_bytes)} in it."
            )
            gain = round(o.trailing_ns * (1 - left))
        elif left > _CUT and last.num_bytes >= _MIB:
            title = f"The last bucket ({_size(last.num_bytes)}) is sent when nothing is left to hide it"
            evidence += (
                f"; the last bucket alone takes {_ms(transfers[-1])}, and no bucket_cap_mb cuts it: DDP divides no "
                "parameter"
            )
            advice, gain = _fewer_bytes(o, module), min(o.trailing_ns, transfers[-1] // 2)
        else:
            continue  # a single bucket that can be cut: `buckets_too_large` says that
        if o.worth(gain):
            yield Finding("trailing-communication", title, evidence, advice, gain)


def _fewer_bytes(o: Observed, module: DdpModule) -> str:
    accumulate = "accumulate gradients over several batches under ddp.no_sync()"
    if module.comm_hook is not None:
        return f"Send fewer bytes: {accumulate}."
    hook = "bf16_compress_hook" if o.backend == "nccl" else "fp16_compress_hook"  # DDP refuses bf16 but for NCCL, XCCL
    return (
        f"Send fewer bytes: ddp.register_comm_hook(None, default_hooks.{hook}), from "
        f"torch.distributed.algorithms.ddp_comm_hooks, halves them (it rounds gradients); or {accumulate}."
    )


def buckets_too_large(o: Observed) -> Iterator[Finding]:
    """One bucket holds nearly everything, so it starts when the backward pass is almost over."""
    if o.exposed_ns is None or not o.worth(o.exposed_ns):
        return
    for module, buckets in _gradient_buckets(o):
        largest = max(buckets, key=lambda b: b.num_bytes)
        total = _total_bytes(buckets)
        if largest.num_bytes < 0.6 * total or total < 2 * _MIB or largest.num_parameters < 2:
            continue
        if len(buckets) > 1 and largest is buckets[-1]:
            continue  # `trailing_communication` says that
        if largest.ready_ns is None or largest.first_ready_ns is None or largest.transfer_ns is None:
            continue
        cap = _smaller_cap(module, buckets)
        left = max(_buckets_under(module, [cap])) / largest.num_bytes
        saved = round(largest.transfer_ns * (1 - left))
        gain = min(o.exposed_ns, largest.ready_ns - largest.first_ready_ns, saved)
        if left <= _CUT and o.worth(gain):
            yield Finding(
                "buckets-too-large",
                f"Bucket {largest.index} holds {largest.num_bytes / total:.0%} of the gradients, so it starts late",
                f"{_size(largest.num_bytes)} of {_size(total)} wait {_ms(largest.ready_ns - largest.first_ready_ns)} from "
                f"their first gradient to their last, then take {_ms(largest.transfer_ns)}",
                f"Cut it up: DistributedDataParallel(model, bucket_cap_mb={cap}).",
                gain,
            )


def buckets_too_small(o: Observed) -> Iterator[Finding]:
    """Many buckets that cost latency rather than bandwidth."""
    if o.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(o):
        transfers = [b.transfer_ns for b in buckets if b.transfer_ns is not None]
        total = _total_bytes(buckets)
        if len(buckets) < 4 or len(transfers) < len(buckets) or total / len(buckets) >= _MIB:
            continue
        latency = min(transfers)
        wanted = len(_buckets_under(module, [1, _DEFAULT_CAP_MB]))
        gain = min(o.exposed_ns, (len(buckets) - wanted) * latency)
        if o.worth(gain):
            yield Finding(
                "buckets-too-small",
                f"{len(buckets)} buckets of {_size(total / len(buckets))} on average pay for latency",
                f"even the fastest takes {_ms(latency)}; {len(buckets)} of them move only {_size(total)}, "
                f"for which DDP by default makes {wanted}",
                "Use fewer: leave bucket_cap_mb and bucket_cap_mb_list out of DistributedDataParallel(…); the default "
                f"caps are 1 MiB for the first bucket and {_DEFAULT_CAP_MB} MiB for the rest.",
                gain,
            )


def first_bucket_late(o: Observed) -> Iterator[Finding]:
    """Gradients are there, but the first all-reduce waits for its bucket to fill."""
    if o.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(o):
        first, cap = buckets[0], _cap_mb(module)
        if not _is_rebuilt(module) or _buckets_under(module, [1, cap])[0] > _CUT * first.num_bytes:
            continue  # no argument of DDP's makes it smaller
        ends = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if first.ready_ns is None or first.first_ready_ns is None or len(buckets) < 2 or first.num_bytes <= 2 * _MIB:
            continue
        waits = first.ready_ns - first.first_ready_ns
        gain = min(o.exposed_ns, waits)
        if waits > 0.25 * (max(ends) - first.first_ready_ns) and o.worth(gain):
            yield Finding(
                "first-bucket-late",
                f"The first all-reduce starts {_ms(waits)} after the first gradient",
                f"bucket 0 collects {_size(first.num_bytes)} in {first.num_parameters} parameters before it is sent; the "
                f"link is idle until then",
                _cap_first(module),
                gain,
            )


def _cap_first(module: DdpModule) -> str:
    cap = _cap_mb(module)
    if cap == _DEFAULT_CAP_MB and not module.settings.get("has_bucket_cap_mb_list"):
        return "Cap the first bucket: leave bucket_cap_mb out, then DDP caps the first bucket at 1 MiB."
    arguments = f"bucket_cap_mb_list=[1, {max(1, round(cap))}]"
    return f"Cap the first bucket: DistributedDataParallel(model, {arguments}), from torch 2.13 on."


def late_parameter(o: Observed) -> Iterator[Finding]:
    """A bucket that was ready but for one gradient holds back its successors, which are launched in index order."""
    if o.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(o):
        for position, bucket in enumerate(buckets[:-1]):
            delay = bucket.slowest_parameter_delay_ns
            if delay is None or bucket.launched_ns is None or bucket.slowest_parameter is None:
                continue
            waiting = [
                b.launched_ns - b.ready_ns
                for b in buckets[position + 1 :]
                if b.launched_ns is not None and b.ready_ns is not None and b.ready_ns < bucket.launched_ns
            ]
            gain = min(o.exposed_ns, delay, max(waiting, default=0))
            if o.worth(gain):
                yield Finding(
                    "late-parameter",
                    f"{bucket.slowest_parameter} holds back {len(waiting) + 1} buckets",
                    f"its gradient comes {_ms(delay)} after the rest of bucket {bucket.index}; buckets behind it were "
                    f"ready, and waited up to {_ms(max(waiting))}, since DDP launches buckets in order",
                    _reorder(module, bucket.slowest_parameter),
                    gain,
                )


def _reorder(module: DdpModule, parameter: str) -> str:
    if _is_rebuilt(module):
        return (
            "DDP ordered its buckets by rank 0's first backward pass, in which this gradient came earlier: let the "
            "first step, and every rank, run the backward pass in the order of all others."
        )
    return (
        f"Define {parameter} earlier in the model: under find_unused_parameters=True DDP fills its buckets in reverse "
        "order of definition. Without it, or with static_graph=True, it goes by the order of the gradients."
    )


def _searches(module: DdpModule) -> bool:
    return bool(module.settings.get("find_unused_parameters")) and not module.settings.get("static_graph")


def unused_parameters(o: Observed) -> Iterator[Finding]:
    """The search for unused parameters, where it finds nothing; the unused ones by name, where it does."""
    for module in o.modules:
        if module.unused is None:
            continue
        if not module.unused and _searches(module):
            cost = "" if o.unused_search_ns is None else f"the search takes {_ms(o.unused_search_ns)} per step, "
            yield Finding(
                "find-unused-for-nothing",
                "find_unused_parameters=True, but every parameter is used",
                f"no parameter of {module.name} was without gradient in any recorded step; {cost}one more all-reduce "
                "follows it, and DDP does not rebuild its buckets in the order of gradients",
                "Leave it out: DistributedDataParallel(model). Keep it only if other batches skip parts of the model.",
                o.unused_search_ns,
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
                f"{len(module.unused)} parameters never get a gradient: {_names(module.unused)}",
                f"they are {_size(lost)} of {_size(all_bytes)}{sent}",
                f"Freeze them before wrapping (parameter.requires_grad_(False)) or remove them.{static}",
                None,
            )


def static_graph(o: Observed) -> Iterator[Finding]:
    """The search for unused parameters finds the same ones every time."""
    for module in o.modules:
        if _searches(module) and module.unused and module.graph_is_static and o.worth(o.unused_search_ns):
            yield Finding(
                "static-graph",
                "The set of unused parameters never changes, yet it is searched for in every step",
                f"torch reports a static graph; the search takes {_ms(o.unused_search_ns or 0)} per step",
                "DistributedDataParallel(model, static_graph=True) instead of find_unused_parameters=True, if the "
                "graph is the same for the whole training.",
                o.unused_search_ns,
            )


def buffers_broadcast(o: Observed) -> Iterator[Finding]:
    """Buffers (BatchNorm's running statistics) are sent from rank 0 before every forward."""
    modules = [m for m in o.modules if m.settings.get("broadcast_buffers") and m.num_buffers]
    if not modules or not o.worth(o.buffer_sync_ns):
        return
    batch_norms = sum(m.num_batch_norms for m in modules)
    what = f"{batch_norms} BatchNorm layers" if batch_norms else ", ".join(m.name for m in modules)
    yield Finding(
        "buffers-broadcast",
        f"{sum(m.num_buffers for m in modules)} buffers of {what} are broadcast before every forward",
        f"{_size(sum(m.buffer_bytes for m in modules))} take {_ms(o.buffer_sync_ns or 0)} per step, and every rank "
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
    if not modules or not o.worth(o.copy_out_ns):
        return
    memory = sum(p.num_bytes for m in modules for p in m.parameters)
    yield Finding(
        "gradient-copies",
        "Reduced gradients are copied out of their buckets",
        f"{_ms(o.copy_out_ns or 0)} per step, and {_size(memory)} of memory",
        "DistributedDataParallel(model, gradient_as_bucket_view=True). Not with code that calls grad.detach_().",
        o.copy_out_ns,
    )


def _training_loaders(o: Observed) -> Iterator[tuple[int, Loader]]:
    for rank, loaders in o.loaders.items():
        for loader in loaders:
            if loader.num_training_steps:
                yield rank, loader


_UNDIVIDED = ("RandomSampler", "SequentialSampler")


def missing_distributed_sampler(o: Observed) -> Iterator[Finding]:
    """Every rank goes through the whole data set."""
    if (o.world_size or 1) < 2:
        return
    plain = [(rank, loader) for rank, loader in _training_loaders(o) if loader.sampler in _UNDIVIDED]
    sizes = {loader.dataset_size for _, loader in plain}
    if len({rank for rank, _ in plain}) > 1 and len(sizes) == 1:
        _, loader = plain[0]
        same = "in the same order" if loader.sampler == "SequentialSampler" else "each in an order of its own"
        yield Finding(
            "no-distributed-sampler",
            "Training data is not divided among the ranks",
            f"every rank's DataLoader uses {loader.sampler} over {loader.dataset_size} samples, {same}; unless each "
            f"rank was given its own part, an epoch trains on the data {o.world_size} times",
            f"DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle={loader.sampler == 'RandomSampler'}), …),"
            " without the DataLoader's own shuffle.",
            None,
            is_correctness=True,
        )


def epoch_never_set(o: Observed) -> Iterator[Finding]:
    """DistributedSampler shuffles by its epoch: without ``set_epoch`` every epoch has the same order."""
    for _, loader in _training_loaders(o):
        epochs = loader.epochs_set
        if loader.shuffles and epochs is not None and len(epochs) > 1 and len(set(epochs)) == 1:
            yield Finding(
                "set-epoch-never-called",
                "Every epoch has the same order: set_epoch is never called",
                f"{loader.sampler} was iterated {loader.num_iterations} times, always with epoch {epochs[0]}",
                "At the start of each epoch: sampler.set_epoch(epoch).",
                None,
                is_correctness=True,
            )
            return


def same_checkpoint(o: Observed) -> Iterator[Finding]:
    """Several ranks write one file."""
    writers: dict[tuple[str, str], list[int]] = {}
    for rank, (host, paths) in o.checkpoints.items():
        for path in paths:
            writers.setdefault((host, path), []).append(rank)
    shared = {path: ranks for (_, path), ranks in writers.items() if len(ranks) > 1}
    if shared:
        path, ranks = next(iter(shared.items()))
        yield Finding(
            "same-checkpoint",
            f"{len(ranks)} ranks save the same checkpoint",
            f"ranks {', '.join(map(str, ranks))} all wrote {path}"
            + (f" ({len(shared)} such files)" if len(shared) > 1 else ""),
            "if dist.get_rank() == 0: torch.save(…), then dist.barrier() where others read it.",
            None,
            is_correctness=True,
        )


def idle_for_data(o: Observed) -> Iterator[Finding]:
    """The training thread waits for its batch."""
    if not o.data_ns or not o.step_ns or o.data_ns < 0.05 * o.step_ns:
        return
    workers = max((loader.num_workers for _, loader in _training_loaders(o)), default=0)
    yield Finding(
        "idle-for-data",
        f"Training waits {_ms(o.data_ns)} per step for its DataLoader",
        f"{o.data_ns / o.step_ns:.0%} of the step, with num_workers={workers}",
        f"DataLoader(…, num_workers={max(4, 2 * workers)}, persistent_workers=True), or cheaper transforms.",
        o.data_ns,
    )


RULES: tuple[Rule, ...] = (
    trailing_communication,
    buckets_too_large,
    buckets_too_small,
    first_bucket_late,
    late_parameter,
    unused_parameters,
    static_graph,
    buffers_broadcast,
    gradient_copies,
    missing_distributed_sampler,
    epoch_never_set,
    same_checkpoint,
    idle_for_data,
)
