"""Rules about gradient buckets and the communication that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpprof.findings.finding import Finding, Observed, at_most, ms, size
from ddpprof.findings.framework_words import accumulation, compression
from ddpprof.findings.layout import advised_buckets, bucket_sizes_under, call_for, cap_mb
from ddpprof.findings.predictions import DEFAULT_CAP, NewBuckets, Predicted
from ddpprof.measures.buckets.bucket_table import BucketSummary
from ddpprof.model import DdpModule
from ddpprof.model.bucket_assignment import DEFAULT_CAP_MIB, DEFAULT_FIRST_CAP_MIB, MIB, is_rebuilt

_CUT = 0.8
"""A smaller cap that leaves a bucket above this part of its size is no advice: one parameter makes up the bucket."""

_NEARLY_ALL = 0.6
"""of the bytes: a bucket with more than that decides when communication starts and ends"""


def _gradient_buckets(observed: Observed) -> Iterator[tuple[DdpModule, tuple[BucketSummary, ...]]]:
    for index, module in enumerate(observed.modules):
        buckets = tuple(b for b in observed.buckets if b.module == index)
        if buckets:
            yield module, buckets


def _total_bytes(buckets: Sequence[BucketSummary]) -> int:
    return sum(b.num_bytes for b in buckets)


def trailing_communication(o: Observed) -> Iterator[Finding]:
    """Communication that goes on after the backward pass: the last bucket is late, or the link is the bottleneck.

    Whose it is cannot be told where a step trains several modules.
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
        left = (new.bucket_bytes[-1] if late is last else max(new.bucket_bytes)) / max(late.num_bytes, 1)
        is_cut = left <= _CUT and (new.predicted is None or o.worth(None, new.predicted))
        evidence = (
            f"{ms(o.trailing_ns)} of gradient communication per step runs after the last op of {_backward(passes)} on "
            f"every rank; all buckets ({len(buckets)}) need {ms(comm)} of transfer, and {ms(window)} of backward were "
            "left to hide it once the first gradient was there"
        )
        if len(buckets) > 1 and comm - passes * transfers[-1] > window:
            if _total_bytes(buckets) < len(buckets) * MIB:
                continue  # latency, not bandwidth: `buckets_too_small` says that
            title = "The link is the bottleneck: gradients take longer to send than the backward pass can hide"
            (advice, predicted), gain = _fewer_bytes(o, module), min(o.trailing_ns, comm // 2)
        elif is_cut and late is not last:
            continue  # `buckets_too_large` says that
        elif len(buckets) > 1 and is_cut:
            title = f"The last bucket ({size(last.num_bytes)}) is sent when nothing is left to hide it"
            evidence += f"; the last bucket alone takes {ms(passes * transfers[-1])}"
            smaller = call_for(o.framework, new)
            advice = f"Make the last bucket smaller: {smaller} leaves {size(left * last.num_bytes)} in it."
            gain, predicted = round(o.trailing_ns * (1 - left)), new.predicted
        elif not is_cut and late.num_bytes >= MIB:
            name = "The last bucket" if late is last else f"Bucket {late.index}"
            transfer = passes * (late.transfer_ns or 0)
            title = f"{name} ({size(late.num_bytes)}) is sent when nothing is left to hide it"
            evidence += f"; it alone takes {ms(transfer)}, and {_leaves(new, left, late)}"
            (advice, predicted), gain = _fewer_bytes(o, module), min(o.trailing_ns, transfer // 2)
        else:
            continue  # a single bucket that can be cut: `buckets_too_large` says that
        if o.worth(gain, predicted):
            gain_ns = at_most(gain, predicted)
            yield Finding("trailing-communication", title, evidence, advice, gain_ns, predicted=predicted)


def _backward(num_passes: int) -> str:
    return "the backward pass" if num_passes == 1 else f"each of {num_passes} backward passes"


def _leaves(new: NewBuckets, left: float, late: BucketSummary) -> str:
    if not new.argument or (new.predicted is not None and new.predicted.gain_ns <= 0):
        return "the replay finds no buckets with which the step is shorter"
    if new.predicted is not None and left <= _CUT:
        return "the replay finds no buckets with which the step is much shorter"
    cut = "a smaller bucket_cap_mb leaves" if new.predicted is None else "the best buckets that were found leave"
    return f"{cut} {size(left * late.num_bytes)} of it"


def _link_ns(buckets: Sequence[BucketSummary]) -> int:
    """How long the buckets keep the link busy: those on it at once share it, where their ends are known."""
    spans = [(b.finished_ns - b.transfer_ns, b.finished_ns) for b in buckets if b.finished_ns and b.transfer_ns]
    if len(spans) < len(buckets):
        return sum(b.transfer_ns or 0 for b in buckets)
    busy_ns, free_at = 0, min(spans)[0]
    for start, end in sorted(spans):
        busy_ns += max(0, end - max(start, free_at))
        free_at = max(end, free_at)
    return busy_ns


def _first_gradient_ns(buckets: Sequence[BucketSummary]) -> int:
    """When smaller buckets could begin to be sent."""
    times = [b.ready_ns if b.first_ready_ns is None else b.first_ready_ns for b in buckets]
    return min(time for time in times if time is not None)


def _what_trails(buckets: Sequence[BucketSummary], trailing_ns: int) -> BucketSummary:
    """The last bucket, unless it is mostly an earlier one that holds nearly everything."""
    large, last = max(buckets, key=lambda b: b.num_bytes), buckets[-1]
    if large.num_bytes < _NEARLY_ALL * _total_bytes(buckets):
        return last
    return large if (large.finished_ns or 0) - (last.ready_ns or 0) > trailing_ns // 2 else last


def _fewer_bytes(o: Observed, module: DdpModule) -> tuple[str, Predicted | None]:
    """What to do, and what it gives back where that is predicted."""
    predicted = o.predictions.compression
    if o.num_micro_steps > 1:
        accumulate = f"accumulate more batches in a step than the {o.num_micro_steps} of now"
    else:
        accumulate = accumulation(o.framework)
    compress = compression(o.framework, o.backend)
    if module.comm_hook is not None or compress is None or (predicted is not None and not o.worth(None, predicted)):
        return f"Send fewer bytes: {accumulate}.", None
    advice = f"Send fewer bytes: {compress} halves 32-bit gradients (it rounds them); or {accumulate}."
    return advice, predicted


def buckets_too_large(o: Observed) -> Iterator[Finding]:
    """One bucket holds nearly everything, so it starts when the backward pass is almost over."""
    if o.exposed_ns is None or not o.worth(o.exposed_ns):
        return
    for module, buckets in _gradient_buckets(o):
        largest = max(buckets, key=lambda b: b.num_bytes)
        total = _total_bytes(buckets)
        if largest.num_bytes < _NEARLY_ALL * total or total < 2 * MIB or largest.num_parameters < 2:
            continue
        if len(buckets) > 1 and largest is buckets[-1]:
            continue  # `trailing_communication` says that
        if largest.ready_ns is None or largest.first_ready_ns is None or largest.transfer_ns is None:
            continue
        new = advised_buckets(o.predictions, module, buckets)
        left = max(new.bucket_bytes) / largest.num_bytes
        saved = round(largest.transfer_ns * (1 - left))
        gain = min(o.exposed_ns, largest.num_passes * min(largest.ready_ns - largest.first_ready_ns, saved))
        if left <= _CUT and o.worth(gain, new.predicted):
            yield Finding(
                "buckets-too-large",
                f"Bucket {largest.index} holds {largest.num_bytes / total:.0%} of the gradients, so it starts late",
                f"{size(largest.num_bytes)} of {size(total)} wait {ms(largest.ready_ns - largest.first_ready_ns)} "
                f"from their first gradient to their last, then take {ms(largest.transfer_ns)}",
                f"Cut it up: {call_for(o.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
            )


def buckets_too_small(o: Observed) -> Iterator[Finding]:
    """Many buckets that cost latency rather than bandwidth."""
    if o.exposed_ns is None:
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
                f"{len(buckets)} buckets of {size(total / len(buckets))} on average pay for latency",
                f"even the fastest takes {ms(latency)}; {len(buckets)} of them move only {size(total)}, "
                + (f"for which DDP by default makes {wanted}" if new.is_default else f"for which {wanted} are best"),
                _USE_DEFAULT if new.is_default else f"Use fewer: {call_for(o.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
            )


_USE_DEFAULT = (
    "Use fewer: leave bucket_cap_mb and bucket_cap_mb_list out of DDP's options; the default "
    f"caps are {DEFAULT_FIRST_CAP_MIB} MiB for the first bucket and {DEFAULT_CAP_MIB} MiB for the rest."
)


def _fewer_buckets(o: Observed, module: DdpModule, now: int) -> NewBuckets:
    """DDP's own, unless others are known to be better.

    That as many or more are predicted to be better counts for nothing: buckets of one size do not tell their latency.
    """
    best = o.predictions.best_buckets
    if best is not None and len(best.bucket_bytes) < now:
        return best
    return NewBuckets(DEFAULT_CAP, bucket_sizes_under(module, [DEFAULT_FIRST_CAP_MIB, DEFAULT_CAP_MIB]))


def first_bucket_late(o: Observed) -> Iterator[Finding]:
    """Gradients are there, but the first all-reduce waits for its bucket to fill."""
    if o.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(o):
        first, new = buckets[0], _smaller_first(o, module)
        if not is_rebuilt(module) or new.bucket_bytes[0] > _CUT * first.num_bytes:
            continue  # no argument of DDP's makes it smaller, or none that helps
        ends = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if first.ready_ns is None or first.first_ready_ns is None or len(buckets) < 2 or first.num_bytes <= 2 * MIB:
            continue
        waits = first.ready_ns - first.first_ready_ns
        gain = min(o.exposed_ns, first.num_passes * waits)
        if waits > 0.25 * (max(ends) - first.first_ready_ns) and o.worth(gain, new.predicted):
            yield Finding(
                "first-bucket-late",
                f"The first all-reduce starts {ms(waits)} after the first gradient",
                f"bucket 0 collects {size(first.num_bytes)} in {first.num_parameters} parameters before it is sent; "
                "the link is idle until then",
                f"Cap the first bucket: {_CAPS_FIRST if new.is_default else call_for(o.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
            )


_CAPS_FIRST = "leave bucket_cap_mb out, then DDP caps the first bucket at 1 MiB"


def _smaller_first(o: Observed, module: DdpModule) -> NewBuckets:
    """The others as they are, unless others are known to be better."""
    if o.predictions.best_buckets is not None:
        return o.predictions.best_buckets
    cap = cap_mb(module)
    is_default = cap == DEFAULT_CAP_MIB and not module.settings.get("has_bucket_cap_mb_list")
    argument = DEFAULT_CAP if is_default else f"bucket_cap_mb_list=[1, {max(1, round(cap))}]"
    return NewBuckets(argument, bucket_sizes_under(module, [DEFAULT_FIRST_CAP_MIB, cap]))


def better_buckets(o: Observed) -> Iterator[Finding]:
    """Whatever the reason: with others the replayed step is shorter, by more than the replay does not know."""
    best = o.predictions.best_buckets
    if best is None or best.predicted is None:
        return
    if best.predicted.low_ns <= 0 or not o.worth(o.exposed_ns, best.predicted):
        return
    was, sizes = [b.num_bytes for b in o.buckets], best.bucket_bytes
    yield Finding(
        "better-buckets",
        f"Other buckets make the step {ms(best.predicted.gain_ns)} shorter when it is replayed",
        f"{_sizes(sizes)} instead of {_sizes(was)}, in the order in which they are sent",
        f"Try {call_for(o.framework, best)}: ddpprof whatif shows its step beside those of other caps.",
        best.predicted.high_ns,
        predicted=best.predicted,
    )


def _sizes(num_bytes: Sequence[int], most: int = 6) -> str:
    shown = [*map(size, num_bytes[:most]), *["…"] * (len(num_bytes) > most)]
    return f"{len(num_bytes)} bucket{'s' if len(num_bytes) > 1 else ''} ({', '.join(shown)})"


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
            gain = min(o.exposed_ns, bucket.num_passes * min(delay, max(waiting, default=0)))
            if o.worth(gain):
                yield Finding(
                    "late-parameter",
                    f"{bucket.slowest_parameter} holds back {len(waiting) + 1} buckets",
                    f"its gradient comes {ms(delay)} after the rest of bucket {bucket.index}; buckets behind it were "
                    f"ready, and waited up to {ms(max(waiting))}, since DDP launches buckets in order",
                    _reorder(module, bucket.slowest_parameter),
                    gain,
                )


def _reorder(module: DdpModule, parameter: str) -> str:
    if is_rebuilt(module):
        return (
            "DDP ordered its buckets by rank 0's first backward pass, in which this gradient came earlier: let the "
            "first step, and every rank, run the backward pass in the order of all others."
        )
    return (
        f"Define {parameter} earlier in the model: under find_unused_parameters=True DDP fills its buckets in reverse "
        "order of definition. Without it, or with static_graph=True, it goes by the order of the gradients."
    )
