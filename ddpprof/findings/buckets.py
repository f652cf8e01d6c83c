"""Rules about gradient buckets and exposed communication.

None advises other buckets for a model that torch.compile has compiled: they would cut it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpprof.findings.bucket_layout import advised_buckets, bucket_sizes_under, bytes_of, call_for, cap_mb
from ddpprof.findings.change import Change, ChangeKind, bucket_change
from ddpprof.findings.finding import Finding, Observed, at_most, in_ms, size
from ddpprof.findings.framework_words import accumulation, compression
from ddpprof.findings.predictions import DEFAULT_CAP, NewBuckets, Predicted
from ddpprof.measures.buckets.bucket_summary import BucketRow
from ddpprof.model import DdpModule
from ddpprof.model.backends import backend_of
from ddpprof.model.bucket_assignment import DEFAULT_CAP_MIB, DEFAULT_FIRST_CAP_MIB, MIB, is_rebuilt
from ddpprof.model.comm_hooks import Compression

_CUT = 0.8
"""largest useful cut: a smaller cap that leaves more of a bucket does not help, as one parameter makes up the bucket"""

_NEARLY_ALL = 0.6
"""share of the bytes from which a single bucket decides when communication starts and ends"""

_MOST_SHOWN = 6


def _gradient_buckets(observed: Observed) -> Iterator[tuple[DdpModule, tuple[BucketRow, ...]]]:
    """Yield the modules whose buckets have known sizes: of sparse gradients nobody knows how much is sent."""
    for index, module in enumerate(observed.modules):
        buckets = tuple(b for b in observed.buckets if b.module == index)
        if buckets and all(bucket.num_bytes is not None for bucket in buckets):
            yield module, buckets


def _total_bytes(buckets: Sequence[BucketRow]) -> int:
    return sum(map(bytes_of, buckets))


def trailing_communication(o: Observed) -> Iterator[Finding]:
    """Report communication after the backward pass: the last bucket is late, or the link is the bottleneck.

    Yields nothing if a step trains several modules, since the communication could belong to any of them.
    """
    if o.trailing_ns is None or not o.worth(o.trailing_ns) or len(o.modules) > 1:
        return
    for module, buckets in _gradient_buckets(o):
        transfers = [b.transfer_ns for b in buckets if b.transfer_ns is not None]
        ready = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if len(transfers) < len(buckets) or len(ready) < len(buckets):
            continue
        passes, last = buckets[0].num_passes, buckets[-1]
        comm, window = passes * _link_ns(buckets), passes * (max(ready) - _first_gradient_ns(buckets))
        late, new = _what_trails(buckets, o.trailing_ns), advised_buckets(o.predictions, module, buckets)
        left = (new.bucket_bytes[-1] if late is last else max(new.bucket_bytes)) / max(bytes_of(late), 1)
        is_cut = left <= _CUT and (new.predicted is None or o.worth(None, new.predicted)) and not o.is_compiled
        evidence = (
            f"{in_ms(o.trailing_ns)} of gradient communication per step runs after the last op of {_backward(passes)} "
            f"on every rank; {_all(buckets)} {in_ms(comm)} to transfer, and after the first gradient "
            f"{'only ' if comm > window else ''}{in_ms(window)} of backward were left to hide it"
        )
        if (comm > 2 * window) if len(buckets) == 1 else (comm - passes * transfers[-1] > window):
            if _total_bytes(buckets) < len(buckets) * MIB:
                continue  # latency, not bandwidth: `buckets_too_small` reports it
            title = "The link is the bottleneck: gradients take longer to send than the backward pass can hide"
            change = _halving(o, module)
            (advice, predicted), gain = _fewer_bytes(o, module), min(o.trailing_ns, comm // 2)
        elif is_cut and late is not last:
            continue  # `buckets_too_large` reports it
        elif len(buckets) > 1 and is_cut:
            title = f"The last bucket ({size(bytes_of(last))}) is sent when no computation is left to hide it"
            evidence += f"; the last bucket alone takes {in_ms(passes * transfers[-1])}"
            smaller = "" if new.predicted is None else f" to {size(left * bytes_of(last))}"
            advice = f"Shrink the last bucket{smaller}: {call_for(o.framework, new)}."
            gain, predicted, change = round(o.trailing_ns * (1 - left)), new.predicted, bucket_change(o.framework, new)
        elif not is_cut and bytes_of(late) >= MIB:
            name = "The last bucket" if late is last else f"Bucket {late.index}"
            transfer = passes * (late.transfer_ns or 0)
            title = f"{name} ({size(bytes_of(late))}) is sent when no computation is left to hide it"
            evidence += f"; it alone takes {in_ms(transfer)}"
            if not o.is_compiled:
                evidence += f", and {_leaves(new, left, late)}"
            change = _halving(o, module)
            (advice, predicted), gain = _fewer_bytes(o, module), min(o.trailing_ns, transfer // 2)
        else:
            continue  # a single bucket, most of which can be hidden once it is cut: `buckets_too_large` reports it
        if o.worth(gain, predicted):
            gain_ns = at_most(gain, predicted)
            yield Finding(
                "trailing-communication",
                title,
                evidence,
                advice,
                gain_ns,
                predicted=predicted,
                cause_ns=o.trailing_ns,
                subject={"bucket": late.index},
                change=change,
            )


def _all(buckets: Sequence[BucketRow]) -> str:
    return "the only bucket needs" if len(buckets) == 1 else f"all buckets ({len(buckets)}) need"


def _backward(num_passes: int) -> str:
    return "the backward pass" if num_passes == 1 else f"each of {num_passes} backward passes"


def _leaves(new: NewBuckets, left: float, late: BucketRow) -> str:
    if not new.argument or (new.predicted is not None and new.predicted.gain_ns <= 0):
        return "the replay finds no buckets that shorten the step"
    if new.predicted is not None and left <= _CUT:
        return "the replay finds no buckets that shorten the step much"
    cut = "a smaller bucket_cap_mb leaves" if new.predicted is None else "the best buckets found leave"
    return f"{cut} {size(left * bytes_of(late))} of it"


def _link_ns(buckets: Sequence[BucketRow]) -> int:
    """Return how long the buckets keep the link busy; concurrent buckets share it if their ends are known."""
    spans = [(b.finished_ns - b.transfer_ns, b.finished_ns) for b in buckets if b.finished_ns and b.transfer_ns]
    if len(spans) < len(buckets):
        return sum(b.transfer_ns or 0 for b in buckets)
    busy_ns, free_at = 0, min(spans)[0]
    for start, end in sorted(spans):
        busy_ns += max(0, end - max(start, free_at))
        free_at = max(end, free_at)
    return busy_ns


def _first_gradient_ns(buckets: Sequence[BucketRow]) -> int:
    """Return when smaller buckets could first be sent."""
    times = [b.ready_ns if b.first_ready_ns is None else b.first_ready_ns for b in buckets]
    return min(time for time in times if time is not None)


def _what_trails(buckets: Sequence[BucketRow], trailing_ns: int) -> BucketRow:
    """Return the last bucket, or an earlier one if it holds nearly everything and causes most of the trailing time."""
    large, last = max(buckets, key=bytes_of), buckets[-1]
    if bytes_of(large) < _NEARLY_ALL * _total_bytes(buckets):
        return last
    return large if (large.finished_ns or 0) - (last.ready_ns or 0) > trailing_ns // 2 else last


def _halving(o: Observed, module: DdpModule) -> Change | None:
    """Return the hook that halves gradients, if one can be registered and is worth it."""
    predicted, compress = o.predictions.compression, compression(o.framework, o.backend)
    can_halve = module.comm_hook is None and any(one.dtype in _HALVED for one in module.parameters)
    if not can_halve or compress is None or (predicted is not None and not o.worth(None, predicted)):
        return None
    return Change(ChangeKind.COMM_HOOK, {backend_of(o.backend).halving.hook: True}, compress, is_lossy=True)


def _fewer_bytes(o: Observed, module: DdpModule) -> tuple[str, Predicted | None]:
    """Return advice on sending fewer bytes, and its predicted gain, if known."""
    halving = _halving(o, module)
    if o.num_micro_steps > 1:
        accumulate = f"accumulate more than the present {o.num_micro_steps} batches per step"
    else:
        accumulate = accumulation(o.framework, bool(module.settings.get("static_graph")))
    if halving is None:
        return f"Send fewer bytes: {accumulate}.", None
    is_fp16 = backend_of(o.backend).halving is Compression.FP16
    limit = " (in fp16, values above 65504 overflow, as they may under a GradScaler)" if is_fp16 else ""
    advice = f"Send fewer bytes: halve 32-bit gradients with {halving.code}, which rounds them{limit}. Or {accumulate}."
    return advice, o.predictions.compression


_HALVED = ("float32", "float64", None)
"""types of gradients that a hook sends in fewer bytes; ``None`` is unknown"""


def buckets_too_large(o: Observed) -> Iterator[Finding]:
    """Report a bucket that holds nearly everything, so that it starts when the backward pass is almost over."""
    if o.is_compiled or o.exposed_ns is None or not o.worth(o.exposed_ns):
        return
    for module, buckets in _gradient_buckets(o):
        largest = max(buckets, key=bytes_of)
        total = _total_bytes(buckets)
        if bytes_of(largest) < _NEARLY_ALL * total or total < 2 * MIB or len(module.buckets[largest.index]) < 2:
            continue
        if len(buckets) > 1 and largest is buckets[-1]:
            continue  # `trailing_communication` reports it
        if largest.ready_ns is None or largest.first_ready_ns is None or largest.transfer_ns is None:
            continue
        new = advised_buckets(o.predictions, module, buckets)
        left = max(new.bucket_bytes) / bytes_of(largest)
        saved = round(largest.transfer_ns * (1 - left))
        gain = min(o.exposed_ns, largest.num_passes * min(largest.ready_ns - largest.first_ready_ns, saved))
        if left <= _CUT and o.worth(gain, new.predicted):
            yield Finding(
                "buckets-too-large",
                f"Bucket {largest.index} holds {bytes_of(largest) / total:.0%} of the gradients, so it starts late",
                f"{size(bytes_of(largest))} of {size(total)} wait {in_ms(largest.ready_ns - largest.first_ready_ns)} "
                f"from their first gradient to their last, then take {in_ms(largest.transfer_ns)}",
                f"Split it: {call_for(o.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
                cause_ns=o.exposed_ns,
                change=bucket_change(o.framework, new),
            )


def buckets_too_small(o: Observed) -> Iterator[Finding]:
    """Report many small buckets, which cost latency rather than bandwidth."""
    if o.is_compiled or o.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(o):
        transfers = [b.transfer_ns for b in buckets if b.transfer_ns is not None]
        total = _total_bytes(buckets)
        if len(buckets) < 4 or len(transfers) < len(buckets) or total / len(buckets) >= MIB:
            continue
        latency, new = min(transfers), _fewer_buckets(o, module, len(buckets))
        wanted = len(new.bucket_bytes)
        gain = min(o.exposed_ns, buckets[0].num_passes * (len(buckets) - wanted) * latency)
        if wanted < len(buckets) and o.worth(gain, new.predicted):
            yield Finding(
                "buckets-too-small",
                f"{len(buckets)} buckets of {size(total / len(buckets))} on average cost latency",
                f"even the fastest takes {in_ms(latency)}; all {len(buckets)} move only {size(total)}, "
                + (f"for which DDP by default makes {wanted}" if new.is_default else f"for which {wanted} are best"),
                _USE_DEFAULT if new.is_default else f"Use fewer: {call_for(o.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
                cause_ns=o.exposed_ns,
                change=bucket_change(o.framework, new),
            )


_USE_DEFAULT = (
    "Use fewer: leave bucket_cap_mb and bucket_cap_mb_list out of DDP's options; the default "
    f"caps are {DEFAULT_FIRST_CAP_MIB} MiB for the first bucket and {DEFAULT_CAP_MIB} MiB for the rest."
)


def _fewer_buckets(o: Observed, module: DdpModule, now: int) -> NewBuckets:
    """Return DDP's default buckets, or the best predicted ones if they are fewer than now.

    Predictions of as many or more buckets are ignored, because buckets of one size do not show their latency.
    """
    best = o.predictions.best_buckets
    if best is not None and len(best.bucket_bytes) < now:
        return best
    return NewBuckets(DEFAULT_CAP, bucket_sizes_under(module, [DEFAULT_FIRST_CAP_MIB, DEFAULT_CAP_MIB]))


def first_bucket_late(o: Observed) -> Iterator[Finding]:
    """Report a first all-reduce that waits for its bucket to fill although gradients are there."""
    if o.is_compiled or o.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(o):
        first, new = buckets[0], _smaller_first(o, module)
        if new is None or not is_rebuilt(module) or new.bucket_bytes[0] > _CUT * bytes_of(first):
            continue  # no argument of DDP makes it smaller, or none that helps
        ends = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if first.ready_ns is None or first.first_ready_ns is None or len(buckets) < 2 or bytes_of(first) <= 2 * MIB:
            continue
        waits = first.ready_ns - first.first_ready_ns
        gain = min(o.exposed_ns, first.num_passes * waits)
        if waits > 0.25 * (max(ends) - first.first_ready_ns) and o.worth(gain, new.predicted):
            yield Finding(
                "first-bucket-late",
                f"The first all-reduce starts {in_ms(waits)} after the first gradient",
                f"bucket 0 collects {size(bytes_of(first))} from {first.num_parameters} parameters before it is sent; "
                "the link is idle until then",
                f"Cap the first bucket: {_CAPS_FIRST if new.is_default else call_for(o.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
                cause_ns=o.exposed_ns,
                change=bucket_change(o.framework, new),
            )


_CAPS_FIRST = "leave bucket_cap_mb out, so that DDP caps the first bucket at 1 MiB"


def _smaller_first(o: Observed, module: DdpModule) -> NewBuckets | None:
    """Return the best predicted buckets, or else the present ones with a smaller first one, if a user can have it."""
    if o.predictions.best_buckets is not None:
        return o.predictions.best_buckets
    cap = cap_mb(module)
    is_default = cap == DEFAULT_CAP_MIB and not module.settings.get("has_bucket_cap_mb_list")
    if not is_default and not o.takes_cap_lists:
        return None
    argument = DEFAULT_CAP if is_default else f"bucket_cap_mb_list=[1, {max(1, round(cap))}]"
    return NewBuckets(argument, bucket_sizes_under(module, [DEFAULT_FIRST_CAP_MIB, cap]))


def better_buckets(o: Observed) -> Iterator[Finding]:
    """Report other buckets that shorten the replayed step by more than the replay's error, whatever the reason."""
    best = o.predictions.best_buckets
    if best is None or best.predicted is None or o.is_compiled:
        return
    if best.predicted.low_ns <= 0 or not o.worth(o.exposed_ns, best.predicted):
        return
    was, sizes = [*map(bytes_of, o.buckets)], best.bucket_bytes
    yield Finding(
        "better-buckets",
        "Other buckets are predicted to shorten the step",
        f"{_sizes(sizes)} instead of {_sizes(was)}, in the order of sending",
        f"Try {call_for(o.framework, best)}. To compare it with other caps, use ddpprof whatif.",
        best.predicted.high_ns,
        predicted=best.predicted,
        cause_ns=o.exposed_ns,
        change=bucket_change(o.framework, best),
    )


def _sizes(num_bytes: Sequence[int]) -> str:
    shown = [*map(size, num_bytes[:_MOST_SHOWN]), *["…"] * (len(num_bytes) > _MOST_SHOWN)]
    return f"{len(num_bytes)} bucket{'s' if len(num_bytes) > 1 else ''} ({', '.join(shown)})"


def late_parameter(o: Observed) -> Iterator[Finding]:
    """Report a bucket that lacks only one gradient and holds back its successors, since DDP launches in index order."""
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
            gain = min(o.exposed_ns, bucket.num_passes * min(delay, max(waiting, default=0)))
            if o.worth(gain):
                yield Finding(
                    "late-parameter",
                    f"{bucket.slowest_parameter} holds back {len(waiting) + 1} buckets",
                    f"its gradient comes {in_ms(delay)} after the rest of bucket {bucket.index}; later buckets were "
                    f"ready, but waited up to {in_ms(max(waiting))}, since DDP launches buckets in order",
                    _reorder(module, bucket.slowest_parameter),
                    gain,
                    subject={"parameter": bucket.slowest_parameter, "bucket": bucket.index},
                )


def _reorder(module: DdpModule, parameter: str) -> str:
    if is_rebuilt(module):
        return (
            "DDP ordered its buckets by rank 0's first backward pass, in which this gradient came earlier: make the "
            "first step on every rank run the backward pass in the same order as all later steps."
        )
    return (
        f"Define {parameter} earlier in the model: with find_unused_parameters=True DDP fills its buckets in reverse "
        "order of definition. Without it, or with static_graph=True, DDP uses the order of the gradients."
    )
