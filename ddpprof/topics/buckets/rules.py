"""Rules about gradient buckets and exposed communication.

No rule suggests other bucket sizes for a compiled model, because they would also change its compiled graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpprof.engine.finding import (
    DEFAULT_CAP,
    Change,
    ChangeKind,
    Finding,
    NewBuckets,
    Predicted,
    Predictions,
    at_most,
    bucket_change,
    equal_caps,
    hoped_for,
    only_known,
    since_torch,
    size,
)
from ddpprof.engine.frameworks import accumulation, compression, ddp_argument, without_ddp_argument
from ddpprof.engine.topic import Topic, View
from ddpprof.layout import count, in_ms
from ddpprof.model import DdpModule
from ddpprof.model.backends import Compression, backend_of
from ddpprof.model.ddp_module import DEFAULT_CAP_MIB, DEFAULT_FIRST_CAP_MIB, MIB, Caps, buckets_under, is_rebuilt
from ddpprof.model.links import longest_message_ns
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.buckets.traced import RankBuckets, buckets_of_rank
from ddpprof.topics.buckets.view import BUCKET_TABLE, bucket_tables
from ddpprof.topics.unused_parameters import searches, uses_everything

Rows = Sequence[BucketRow]
"""the gradient buckets of all DDP modules"""

_CUT = 0.8
"""a smaller cap is advised only if the bucket then has at most this share of its current size; a bucket with a single
large parameter cannot become smaller
"""

_NEARLY_ALL = 0.6
"""a bucket with at least this share of all gradient bytes determines when communication starts and ends"""

_MOST_SHOWN = 6


def _gradient_buckets(rows: Rows, view: View) -> Iterator[tuple[DdpModule, tuple[BucketRow, ...]]]:
    """Yield each module with known bucket sizes, and its buckets. The size of sparse gradients is unknown."""
    for index, module in enumerate(view.modules):
        buckets = tuple(b for b in rows if b.module == index)
        if buckets and all(bucket.num_bytes is not None for bucket in buckets):
            yield module, buckets


def _total_bytes(buckets: Sequence[BucketRow]) -> int:
    return sum(map(bytes_of, buckets))


def trailing_communication(rows: Rows, view: View) -> Iterator[Finding]:
    """Report communication that continues after the backward pass because the last bucket is late or the link is slow.

    Reports nothing if a step trains several modules, because the communication could belong to any of them.
    """
    if view.trailing_ns is None or not view.worth(view.trailing_ns) or len(view.modules) > 1:
        return
    for module, buckets in _gradient_buckets(rows, view):
        transfers = [b.transfer_ns for b in buckets if b.transfer_ns is not None]
        ready = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if len(transfers) < len(buckets) or len(ready) < len(buckets):
            continue
        passes, last = buckets[0].num_passes, buckets[-1]
        comm, window = passes * _link_ns(buckets), passes * (max(ready) - _first_gradient_ns(buckets))
        late, new = _what_trails(buckets, view.trailing_ns), advised_buckets(view.predictions, module, buckets)
        left = (new.bucket_bytes[-1] if late is last else max(new.bucket_bytes)) / max(bytes_of(late), 1)
        is_worth = new.predicted is None or view.worth(None, new.predicted)
        is_cut = left <= _CUT and is_worth and not view.is_compiled
        evidence = (
            f"{in_ms(view.trailing_ns)} of gradient communication per step runs after the last op of "
            f"{_backward(passes)} on every rank; {_all(buckets)} {in_ms(comm)} to transfer, and "
            f"after the first gradient, {'only ' if comm > window else ''}{in_ms(window)} of the backward pass "
            "remains to hide the transfer"
        )
        if (comm > 2 * window) if len(buckets) == 1 else (comm - passes * transfers[-1] > window):
            if _total_bytes(buckets) < len(buckets) * MIB:
                continue  # latency, not bandwidth: `buckets_too_small` reports it
            title = "The link is the bottleneck: sending the gradients takes longer than the backward pass can hide"
            change = _halving(view, module)
            (advice, predicted), gain = _fewer_bytes(view, module), min(view.trailing_ns, comm // 2)
        elif is_cut and late is not last:
            continue  # `buckets_too_large` reports it
        elif len(buckets) > 1 and is_cut:
            title = f"The last bucket ({size(bytes_of(last))}) is sent when no computation is left to hide it"
            evidence += f"; the last bucket alone takes {in_ms(passes * transfers[-1])}"
            smaller = "" if new.predicted is None else f" to {size(left * bytes_of(last))}"
            advice = f"Shrink the last bucket{smaller}: {call_for(view.framework, new)}."
            gain, predicted, change = (
                round(view.trailing_ns * (1 - left)),
                new.predicted,
                bucket_change(view.framework, new),
            )
        elif not is_cut and bytes_of(late) >= MIB:
            name = "The last bucket" if late is last else f"Bucket {late.index}"
            transfer = passes * (late.transfer_ns or 0)
            title = f"{name} ({size(bytes_of(late))}) is sent when no computation is left to hide it"
            evidence += f"; this bucket alone takes {in_ms(transfer)}"
            if not view.is_compiled:
                evidence += f", and {_leaves(new, left, late)}"
            change = _halving(view, module)
            (advice, predicted), gain = _fewer_bytes(view, module), min(view.trailing_ns, transfer // 2)
        else:
            continue  # a single bucket that can be split: `buckets_too_large` reports it
        if view.worth(gain, predicted):
            gain_ns = at_most(gain, predicted)
            yield Finding(
                "trailing-communication",
                title,
                evidence,
                advice,
                gain_ns,
                predicted=predicted,
                cause_ns=view.trailing_ns,
                subject={"bucket": late.index},
                change=change,
                numbers=only_known(trailing_ns=view.trailing_ns, bucket_bytes=bytes_of(late), num_buckets=len(buckets)),
            )


def _all(buckets: Sequence[BucketRow]) -> str:
    return "the only bucket takes" if len(buckets) == 1 else f"all {len(buckets)} buckets take"


def _backward(num_passes: int) -> str:
    return "the backward pass" if num_passes == 1 else f"each of {num_passes} backward passes"


def _leaves(new: NewBuckets, left: float, late: BucketRow) -> str:
    if not new.argument or (new.predicted is not None and new.predicted.gain_ns <= 0):
        return "the replay finds no bucket sizes that shorten the step"
    if new.predicted is not None and left <= _CUT:
        return "the replay finds no bucket sizes that shorten the step noticeably"
    cut = "a smaller bucket_cap_mb" if new.predicted is None else "the best bucket sizes found"
    return f"{cut} would only reduce it to {size(left * bytes_of(late))}"


def _link_ns(buckets: Sequence[BucketRow]) -> int:
    """Return how long the buckets use the link, in ns. If end times are known, concurrent buckets count once."""
    spans = [(b.finished_ns - b.transfer_ns, b.finished_ns) for b in buckets if b.finished_ns and b.transfer_ns]
    if len(spans) < len(buckets):
        return sum(b.transfer_ns or 0 for b in buckets)
    busy_ns, free_at = 0, min(spans)[0]
    for start, end in sorted(spans):
        busy_ns += max(0, end - max(start, free_at))
        free_at = max(end, free_at)
    return busy_ns


def _first_gradient_ns(buckets: Sequence[BucketRow]) -> int:
    """Return the time at which the first gradient is ready, in ns since the end of the forward pass."""
    times = [b.ready_ns if b.first_ready_ns is None else b.first_ready_ns for b in buckets]
    return min(time for time in times if time is not None)


def _what_trails(buckets: Sequence[BucketRow], trailing_ns: int) -> BucketRow:
    """Return the bucket that causes most trailing communication: the last one, or one with most of the bytes."""
    large, last = max(buckets, key=bytes_of), buckets[-1]
    if bytes_of(large) < _NEARLY_ALL * _total_bytes(buckets):
        return last
    return large if (large.finished_ns or 0) - (last.ready_ns or 0) > trailing_ns // 2 else last


def _halving(view: View, module: DdpModule) -> Change | None:
    """Return the comm hook that sends gradients in 16 bits, if it can be registered and would save enough time."""
    predicted, compress = view.predictions.compression, compression(view.framework, view.backend)
    can_halve = module.comm_hook is None and any(one.dtype in _HALVED for one in module.parameters)
    if not can_halve or compress is None or (predicted is not None and not view.worth(None, predicted)):
        return None
    return Change(ChangeKind.COMM_HOOK, {backend_of(view.backend).halving.hook: True}, compress, is_lossy=True)


def _fewer_bytes(view: View, module: DdpModule) -> tuple[str, Predicted | None]:
    """Return advice on sending fewer bytes, and its predicted gain, if known."""
    halving = _halving(view, module)
    if view.num_micro_steps > 1:
        accumulate = f"accumulate gradients over more than the current {view.num_micro_steps} batches per step"
    else:
        accumulate = accumulation(view.framework, bool(module.settings.get("static_graph")))
    if halving is None:
        return f"Send fewer bytes: {accumulate}.", None
    is_fp16 = backend_of(view.backend).halving is Compression.FP16
    limit = " (in fp16, values above 65504 overflow, which is more likely with a GradScaler)" if is_fp16 else ""
    advice = f"Send fewer bytes: round 32-bit gradients to 16 bits with {halving.code}{limit}. Or {accumulate}."
    return advice, view.predictions.compression


_HALVED = ("float32", "float64", None)
"""gradient dtypes that a comm hook can compress; ``None`` stands for an unknown dtype"""


def buckets_too_large(rows: Rows, view: View) -> Iterator[Finding]:
    """Report a bucket with most of the gradients: its all-reduce starts only near the end of the backward pass."""
    if view.is_compiled or view.exposed_ns is None or not view.worth(view.exposed_ns):
        return
    for module, buckets in _gradient_buckets(rows, view):
        largest = max(buckets, key=bytes_of)
        total = _total_bytes(buckets)
        if bytes_of(largest) < _NEARLY_ALL * total or total < 2 * MIB or len(module.buckets[largest.index]) < 2:
            continue
        if len(buckets) > 1 and largest is buckets[-1]:
            continue  # `trailing_communication` reports it
        if largest.ready_ns is None or largest.first_ready_ns is None or largest.transfer_ns is None:
            continue
        new = advised_buckets(view.predictions, module, buckets)
        left = max(new.bucket_bytes) / bytes_of(largest)
        saved = round(largest.transfer_ns * (1 - left))
        gain = min(view.exposed_ns, largest.num_passes * min(largest.ready_ns - largest.first_ready_ns, saved))
        if left <= _CUT and view.worth(gain, new.predicted):
            yield Finding(
                "buckets-too-large",
                f"Bucket {largest.index} holds {bytes_of(largest) / total:.0%} of the gradients, so its all-reduce "
                "starts late",
                f"its {size(bytes_of(largest))} (of {size(total)}) take "
                f"{in_ms(largest.ready_ns - largest.first_ready_ns)} to become ready, from the first gradient to the "
                f"last, and then {in_ms(largest.transfer_ns)} to send",
                f"Split it: {call_for(view.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
                cause_ns=view.exposed_ns,
                change=bucket_change(view.framework, new),
                numbers=only_known(bucket_bytes=bytes_of(largest), gradient_bytes=total, exposed_ns=view.exposed_ns),
            )


def buckets_too_small(rows: Rows, view: View) -> Iterator[Finding]:
    """Report many small buckets. They cost latency rather than bandwidth."""
    if view.is_compiled or view.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(rows, view):
        transfers = [b.transfer_ns for b in buckets if b.transfer_ns is not None]
        total = _total_bytes(buckets)
        if len(buckets) < 4 or len(transfers) < len(buckets) or total / len(buckets) >= MIB:
            continue
        latency, new = _latency_ns(view, min(transfers)), _fewer_buckets(view, module, len(buckets))
        wanted = len(new.bucket_bytes)
        gain = min(view.exposed_ns, buckets[0].num_passes * (len(buckets) - wanted) * latency)
        default = view.predictions.default_buckets
        is_worse = default is not None and default.gain_ns < 0 and default.low_ns + default.high_ns < 0
        cannot_help = new.is_default and is_worse
        if wanted < len(buckets) and not cannot_help and view.worth(gain, new.predicted):
            yield Finding(
                "buckets-too-small",
                f"{len(buckets)} small buckets ({size(total / len(buckets))} on average) add latency",
                f"even the fastest all-reduce takes {in_ms(min(transfers))}"
                + (f", of which up to {in_ms(latency)} is latency" if latency < min(transfers) else "")
                + f"; all {len(buckets)} buckets hold only {size(total)}, for which "
                + (f"DDP's default builds {wanted}" if new.is_default else f"{wanted} would be best"),
                _USE_DEFAULT if new.is_default else f"Use fewer buckets: {call_for(view.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
                cause_ns=view.exposed_ns,
                change=bucket_change(view.framework, new),
                numbers=only_known(num_buckets=len(buckets), gradient_bytes=total, latency_ns=latency),
            )


def _latency_ns(view: View, fastest_ns: int) -> int:
    """Return how much of the fastest all-reduce may be latency, in ns: all of it if no round trip is known.

    A ring sends 2(n-1) messages, one after the other.
    """
    trips_ns = [one.round_trip_ns for one in view.records.values() if one.round_trip_ns is not None]
    rounds = 2 * ((view.group_size or view.world_size or 1) - 1)
    longest_ns = [longest_message_ns(ns, waits_for_cores=view.shares_cores) for ns in trips_ns]
    return min(fastest_ns, rounds * max(longest_ns)) if longest_ns else fastest_ns


_USE_DEFAULT = (
    "Use fewer buckets: do not pass bucket_cap_mb or bucket_cap_mb_list to DDP; the default "
    f"caps are {DEFAULT_FIRST_CAP_MIB} MiB for the first bucket and {DEFAULT_CAP_MIB} MiB for the rest."
)


def _fewer_buckets(view: View, module: DdpModule, now: int) -> NewBuckets:
    """Return the predicted best buckets if there are fewer of them than now; otherwise, return DDP's default buckets.

    Predictions that do not reduce the number are ignored: latency cannot be measured with buckets of equal size.
    """
    best = view.predictions.best_buckets
    if best is not None and len(best.bucket_bytes) < now:
        return best
    return NewBuckets(DEFAULT_CAP, bucket_sizes_under(module, [DEFAULT_FIRST_CAP_MIB, DEFAULT_CAP_MIB]))


def first_bucket_late(rows: Rows, view: View) -> Iterator[Finding]:
    """Report that the first all-reduce starts late because its bucket takes a long time to fill."""
    if view.is_compiled or view.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(rows, view):
        first, new = buckets[0], _smaller_first(view, module)
        if new is None or not is_rebuilt(module) or new.bucket_bytes[0] > _CUT * bytes_of(first):
            continue  # no argument of DDP makes the first bucket much smaller
        ends = [b.ready_ns for b in buckets if b.ready_ns is not None]
        if first.ready_ns is None or first.first_ready_ns is None or len(buckets) < 2 or bytes_of(first) <= 2 * MIB:
            continue
        waits = first.ready_ns - first.first_ready_ns
        gain = min(view.exposed_ns, first.num_passes * waits)
        if waits > 0.25 * (max(ends) - first.first_ready_ns) and view.worth(gain, new.predicted):
            yield Finding(
                "first-bucket-late",
                f"The first all-reduce starts {in_ms(waits)} after the first gradient is ready",
                f"bucket 0 collects {size(bytes_of(first))} from {first.num_parameters} parameters before it is sent; "
                "the link is idle until then",
                f"Cap the first bucket: {_CAPS_FIRST if new.is_default else call_for(view.framework, new)}.",
                at_most(gain, new.predicted),
                predicted=new.predicted,
                cause_ns=view.exposed_ns,
                change=bucket_change(view.framework, new),
                numbers=only_known(late_ns=waits, bucket_bytes=bytes_of(first), num_parameters=first.num_parameters),
            )


_CAPS_FIRST = "do not pass bucket_cap_mb, so that DDP caps the first bucket at 1 MiB"


def _smaller_first(view: View, module: DdpModule) -> NewBuckets | None:
    """Return the best predicted buckets, or else the current buckets with a smaller first bucket, if DDP permits it."""
    if view.predictions.best_buckets is not None:
        return view.predictions.best_buckets
    cap = cap_mb(module)
    is_default = cap == DEFAULT_CAP_MIB and not module.settings.get("has_bucket_cap_mb_list")
    if not is_default and not view.takes_cap_lists:
        return None
    argument = DEFAULT_CAP if is_default else f"bucket_cap_mb_list=[1, {max(1, round(cap))}]"
    return NewBuckets(argument, bucket_sizes_under(module, [DEFAULT_FIRST_CAP_MIB, cap]))


def better_buckets(rows: Rows, view: View) -> Iterator[Finding]:
    """Report bucket sizes that are predicted to shorten the step by more than the error of the replay."""
    best = view.predictions.best_buckets
    if best is None or best.predicted is None or view.is_compiled:
        return
    if best.predicted.low_ns <= 0 or not view.worth(view.exposed_ns, best.predicted):
        return
    was, sizes = [*map(bytes_of, rows)], best.bucket_bytes
    yield Finding(
        "better-buckets",
        "Different bucket sizes are predicted to shorten the step",
        f"{_sizes(sizes)} instead of {_sizes(was)}, in the order in which they are sent",
        f"Try {call_for(view.framework, best)}. To compare these sizes with others, use ddpprof whatif.",
        best.predicted.high_ns,
        predicted=best.predicted,
        cause_ns=view.exposed_ns,
        change=bucket_change(view.framework, best),
        numbers=only_known(num_buckets=len(was), num_new_buckets=len(sizes), exposed_ns=view.exposed_ns),
    )


def _sizes(num_bytes: Sequence[int]) -> str:
    shown = [*map(size, num_bytes[:_MOST_SHOWN]), *["…"] * (len(num_bytes) > _MOST_SHOWN)]
    return f"{len(num_bytes)} bucket{'s' if len(num_bytes) > 1 else ''} ({', '.join(shown)})"


def late_parameter(rows: Rows, view: View) -> Iterator[Finding]:
    """Report a late gradient that delays its bucket and all later buckets, because DDP launches buckets in order.

    Compiled models are excluded, because the late gradient may come from another graph; `compiled_graphs` reports
    this. Modules that needlessly search for unused parameters are also excluded: without the search, DDP would
    reorder the buckets itself.
    """
    if view.is_compiled or view.exposed_ns is None:
        return
    for module, buckets in _gradient_buckets(rows, view):
        if searches(module) and uses_everything(module):
            continue
        blocking = max(_blocking(buckets), key=lambda one: max(one[2]), default=None)
        if blocking is None:
            continue
        bucket, parameter, waiting = blocking
        bound = min(view.exposed_ns, bucket.num_passes * max(waiting))
        in_order = None if is_rebuilt(module) else view.predictions.without_unused_search
        gain_ns, predicted = hoped_for(bound, in_order)
        if view.worth(gain_ns, predicted):
            yield Finding(
                "late-parameter",
                f"{parameter} delays {len(waiting) + 1} buckets",
                f"its gradient is the last one in bucket {bucket.index}; DDP launches buckets in order, so "
                f"{count(len(waiting), 'other bucket')} {'waits' if len(waiting) == 1 else 'wait'} up to "
                f"{in_ms(max(waiting))} for this bucket",
                _reorder(module, parameter),
                gain_ns,
                predicted=predicted,
                cause_ns=bound,
                subject={"parameter": parameter, "bucket": bucket.index},
                numbers=only_known(waiting_ns=max(waiting), num_buckets=len(waiting) + 1),
            )


def _blocking(buckets: Sequence[BucketRow]) -> Iterator[tuple[BucketRow, str, Sequence[int]]]:
    """Yield each bucket that later buckets wait for, its last parameter, and the waits of these later buckets in ns.

    A bucket that is itself waiting for an earlier bucket is skipped.
    """
    before_ns = 0
    for position, bucket in enumerate(buckets):
        if bucket.ready_ns is None or bucket.slowest_parameter is None or bucket.ready_ns <= before_ns:
            continue
        ready = [one.ready_ns for one in buckets[position + 1 :] if one.ready_ns is not None]
        waiting = [bucket.ready_ns - max(ns, before_ns) for ns in ready if ns < bucket.ready_ns]
        if waiting:
            yield bucket, bucket.slowest_parameter, waiting
        before_ns = bucket.ready_ns


def _reorder(module: DdpModule, parameter: str) -> str:
    if is_rebuilt(module):
        return (
            "DDP arranged its buckets according to rank 0's first backward pass, in which this gradient was ready "
            "earlier. Make gradients become ready in the same order in the first step as in all later steps, on every "
            "rank."
        )
    return (
        f"Define {parameter} earlier in the model, in the order in which forward() uses the layers: with "
        "find_unused_parameters=True, DDP fills its buckets in reverse order of definition. Without "
        "find_unused_parameters=True, or with static_graph=True, DDP uses the order in which gradients become ready."
    )


def cap_mb(module: DdpModule) -> float:
    return float(DEFAULT_CAP_MIB) if module.bucket_cap_mb is None else module.bucket_cap_mb


def bucket_sizes_under(module: DdpModule, caps_mib: Sequence[float]) -> tuple[int, ...]:
    """Return the sizes in bytes of the buckets that DDP would build with these caps, in launch order.

    The last cap applies to all further buckets.
    """
    buckets = buckets_under(module, Caps.of(bucket_cap_mb_list=caps_mib))
    return tuple(sum(module.parameters[index].num_bytes for index in bucket) for bucket in buckets)


def bytes_of(bucket: BucketRow) -> int:
    """Return the size of a bucket. Call this only for recorded modules without sparse gradients."""
    return bucket.num_bytes or 0


def smaller_cap(module: DdpModule, buckets: Sequence[BucketRow]) -> int:
    cap = min(cap_mb(module), max(map(bytes_of, buckets)) / MIB)
    return max(1, round(cap / 4))


def call_for(framework: str | None, new: NewBuckets) -> str:
    """Return the end of a sentence that says how to make DDP build these buckets."""
    if new.is_default:
        return without_ddp_argument(framework, "bucket_cap_mb")
    if new.predicted is None:
        name = new.argument.partition("=")[0]
        argument = ddp_argument(framework, f"{name}=…")
        return f"{argument}. This run does not show the best value: measure it with ddpprof tune"
    return f"{ddp_argument(framework, new.argument)}{since_torch(new.argument)}{equal_caps(new.equal_mb)}"


def advised_buckets(predictions: Predictions, module: DdpModule, buckets: Sequence[BucketRow]) -> NewBuckets:
    """Return the best buckets that the replay found or, if there are none, those for a quarter of the current cap."""
    if predictions.best_buckets is not None:
        return predictions.best_buckets
    cap = smaller_cap(module, buckets)
    return NewBuckets(f"bucket_cap_mb={cap}", bucket_sizes_under(module, [cap]))


BUCKETS: Topic[RankBuckets, tuple[BucketRow, ...]] = Topic(
    "buckets",
    of_rank=buckets_of_rank,
    rank_type=RankBuckets,
    rules=(
        trailing_communication,
        buckets_too_large,
        buckets_too_small,
        first_bucket_late,
        better_buckets,
        late_parameter,
    ),
    sections={"buckets": bucket_tables},
    tables=(BUCKET_TABLE,),
)
