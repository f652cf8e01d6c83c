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


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change."""

    rule: str
    title: str
    evidence: str
    advice: str
    gain_ns: int | None
    """per step, at most; ``None`` for what costs correctness or cannot be told from this run"""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the rules look at. Times are ns per step: medians over steps, of the rank where they are least."""

    world_size: int | None
    step_ns: int | None
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
        return gain_ns is not None and self.step_ns is not None and gain_ns >= _WORTH_SAYING * self.step_ns


Rule = Callable[[Observed], Iterator[Finding]]


def find(observed: Observed) -> tuple[Finding, ...]:
    """Every finding, by what it could give back, most first; those without a gain last."""
    findings = [finding for rule in RULES for finding in rule(observed)]
    return tuple(sorted(findings, key=lambda f: -1 if f.gain_ns is None else f.gain_ns, reverse=True))


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"


def _mb(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


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
    cap = module.settings.get("bucket_cap_mb", 25.0)
    return float(cap) if isinstance(cap, int | float) else 25.0


def trailing_communication(o: Observed) -> Iterator[Finding]:
    """Communication that goes on after the backward pass: the last bucket is late, or the link is the bottleneck."""
    if o.trailing_ns is None or not o.worth(o.trailing_ns):
        return
    for module, buckets in _gradient_buckets(o):
        transfers = [b.transfer_ns for b in buckets]
        ready = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if None in transfers or len(ready) < len(buckets):
            continue
        comm = sum(t for t in transfers if t is not None)
        window = max(ready) - min(ready)
        last = buckets[-1]
        evidence = (
            f"{_ms(o.trailing_ns)} of gradient communication per step runs after the last backward op on every rank; "
            f"{len(buckets)} buckets need {_ms(comm)} of transfer, {_ms(window)} of backward were left to hide it"
        )
        if len(buckets) > 1 and comm - (last.transfer_ns or 0) > window:
            yield Finding(
                "trailing-communication",
                "The link is the bottleneck: gradients take longer to send than the backward pass can hide",
                evidence,
                "Send fewer bytes: ddp.register_comm_hook(None, default_hooks.bf16_compress_hook) halves them (it "
                "rounds gradients), or accumulate gradients over several batches under ddp.no_sync().",
                min(o.trailing_ns, comm // 2),
            )
        elif len(buckets) > 1:
            yield Finding(
                "trailing-communication",
                f"The last bucket ({_mb(last.num_bytes)}) is sent when nothing is left to hide it",
                f"{evidence}; the last bucket alone takes {_ms(last.transfer_ns or 0)}",
                f"Make the last bucket smaller: {_smaller_cap(module, buckets)}.",
                round(o.trailing_ns * max(0.0, 1 - _MIB / max(last.num_bytes, 1))),
            )


def _smaller_cap(module: DdpModule, buckets: Sequence[BucketSummary]) -> str:
    cap = min(_cap_mb(module), max(b.num_bytes for b in buckets) / _MIB)
    return f"DistributedDataParallel(model, bucket_cap_mb={max(1, round(cap / 4))})"


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
        gain = min(o.exposed_ns, largest.ready_ns - largest.first_ready_ns, round(largest.transfer_ns * 0.75))
        if o.worth(gain):
            yield Finding(
                "buckets-too-large",
                f"Bucket {largest.index} holds {largest.num_bytes / total:.0%} of the gradients, so it starts late",
                f"{_mb(largest.num_bytes)} of {_mb(total)} wait {_ms(largest.ready_ns - largest.first_ready_ns)} from "
                f"their first gradient to their last, then take {_ms(largest.transfer_ns)}",
                f"Cut it up: {_smaller_cap(module, buckets)}.",
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
        wanted = max(1, -(-total // (25 * _MIB)))
        gain = min(o.exposed_ns, (len(buckets) - wanted) * latency)
        if o.worth(gain):
            yield Finding(
                "buckets-too-small",
                f"{len(buckets)} buckets of {_mb(total / len(buckets))} on average pay for latency",
                f"even the fastest takes {_ms(latency)}; {len(buckets)} of them move only {_mb(total)}",
                f"Use fewer: DistributedDataParallel(model, bucket_cap_mb={max(25, round(_cap_mb(module) * 4))}).",
                gain,
            )


def first_bucket_late(o: Observed) -> Iterator[Finding]:
    """Gradients are there, but the first all-reduce waits for its bucket to fill."""
    if o.exposed_ns is None:
        return
    for _, buckets in _gradient_buckets(o):
        first = buckets[0]
        ends = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if first.ready_ns is None or first.first_ready_ns is None or len(buckets) < 2 or first.num_bytes <= 2 * _MIB:
            continue
        waits = first.ready_ns - first.first_ready_ns
        gain = min(o.exposed_ns, waits)
        if waits > 0.25 * (max(ends) - first.first_ready_ns) and o.worth(gain):
            yield Finding(
                "first-bucket-late",
                f"The first all-reduce starts {_ms(waits)} after the first gradient",
                f"bucket 0 collects {_mb(first.num_bytes)} in {first.num_parameters} parameters before it is sent; the "
                f"link is idle until then",
                "Cap the first bucket: DistributedDataParallel(model, bucket_cap_mb_list=[1, …]) (from torch 2.13 on).",
                gain,
            )


def late_parameter(o: Observed) -> Iterator[Finding]:
    """A bucket that was ready but for one gradient holds back its successors, which are launched in index order."""
    if o.exposed_ns is None:
        return
    for _, buckets in _gradient_buckets(o):
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
                    f"Define {bucket.slowest_parameter} earlier in the model: DDP fills buckets in reverse order of "
                    "definition, and rebuilds them in the order of gradients only without find_unused_parameters=True.",
                    gain,
                )


def unused_parameters(o: Observed) -> Iterator[Finding]:
    """The search for unused parameters, where it finds nothing; the unused ones by name, where it does."""
    for module in o.modules:
        searching = bool(module.settings.get("find_unused_parameters"))
        if module.unused is None or (not searching and not module.unused):
            continue
        if not module.unused:
            yield Finding(
                "find-unused-for-nothing",
                "find_unused_parameters=True, but every parameter is used",
                f"no parameter of {module.name} was without gradient in any recorded step; the search takes "
                f"{_ms(o.unused_search_ns)} per step and keeps DDP from rebuilding its buckets in gradient order"
                if o.unused_search_ns is not None
                else f"no parameter of {module.name} was without gradient in any recorded step",
                "Leave it out: DistributedDataParallel(model). Keep it only if other batches skip parts of the model.",
                o.unused_search_ns,
            )
            continue
        if not searching:
            yield Finding(
                "unused-parameters",
                f"DDP stopped the training: {len(module.unused)} parameters got no gradient: {_names(module.unused)}",
                "without find_unused_parameters=True the reducer waits for every gradient, and gives up at the next "
                "forward",
                "Remove them or freeze them before wrapping (parameter.requires_grad_(False)); if other batches use "
                "them, DistributedDataParallel(model, find_unused_parameters=True).",
                None,
            )
            continue
        lost = sum(p.num_bytes for p in module.parameters if p.name in set(module.unused))
        static = " If they never are, static_graph=True spares the search." if module.graph_is_static else ""
        yield Finding(
            "unused-parameters",
            f"{len(module.unused)} parameters never get a gradient: {_names(module.unused)}",
            f"{_mb(lost)} of {_mb(sum(p.num_bytes for p in module.parameters))} are all-reduced for nothing",
            f"Freeze them before wrapping (parameter.requires_grad_(False)) or remove them.{static}",
            None,
        )


def static_graph(o: Observed) -> Iterator[Finding]:
    """The search for unused parameters finds the same ones every time."""
    for module in o.modules:
        searching = module.settings.get("find_unused_parameters") and not module.settings.get("static_graph")
        if searching and module.unused and module.graph_is_static and o.worth(o.unused_search_ns):
            yield Finding(
                "static-graph",
                "The set of unused parameters never changes, yet it is searched for in every step",
                f"torch reports a static graph; the search takes {_ms(o.unused_search_ns or 0)} per step",
                "DistributedDataParallel(model, static_graph=True), if the graph is the same for the whole training.",
                o.unused_search_ns,
            )


def buffers_broadcast(o: Observed) -> Iterator[Finding]:
    """Buffers (BatchNorm's running statistics) are sent from rank 0 before every forward."""
    for module in o.modules:
        if not module.settings.get("broadcast_buffers") or not module.num_buffers or not o.worth(o.buffer_sync_ns):
            continue
        what = f"{module.num_batch_norms} BatchNorm layers" if module.num_batch_norms else module.name
        yield Finding(
            "buffers-broadcast",
            f"{module.num_buffers} buffers of {what} are broadcast before every forward",
            f"{_mb(module.buffer_bytes)} take {_ms(o.buffer_sync_ns or 0)} per step, and every rank waits for rank 0",
            "DistributedDataParallel(model, forward_sync_buffers=False) (before torch 2.13: broadcast_buffers=False), "
            "and save checkpoints from rank 0. Training does not use running statistics; if ranks must agree on "
            "them, SyncBatchNorm does it better.",
            o.buffer_sync_ns,
        )


def gradient_copies(o: Observed) -> Iterator[Finding]:
    """Buckets are copied back into ``.grad``, which could be views of them."""
    if not o.worth(o.copy_out_ns):
        return
    for module in o.modules:
        if not module.settings.get("gradient_as_bucket_view"):
            yield Finding(
                "gradient-copies",
                "Reduced gradients are copied out of their buckets",
                f"{_ms(o.copy_out_ns or 0)} per step, and {_mb(sum(p.num_bytes for p in module.parameters))} of memory",
                "DistributedDataParallel(model, gradient_as_bucket_view=True). Not with code that calls "
                "grad.detach_().",
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
            "DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=True), …).",
            None,
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
        )


def idle_for_data(o: Observed) -> Iterator[Finding]:
    """The training thread waits for its batch."""
    if o.data_ns is None or o.step_ns is None or o.data_ns < 0.05 * o.step_ns:
        return
    workers = max((loader.num_workers for _, loader in _training_loaders(o)), default=0)
    yield Finding(
        "idle-for-data",
        f"Training waits {_ms(o.data_ns)} per step for its DataLoader",
        f"{o.data_ns / o.step_ns:.0%} of the step, with num_workers={workers}",
        f"DataLoader(…, num_workers={max(4, 2 * workers)}, pin_memory=True, persistent_workers=True).",
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
