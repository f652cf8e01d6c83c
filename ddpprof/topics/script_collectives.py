r"""Measure the collectives that the script itself calls, outside DDP, and their cost per step.

    outside DDP = communication launched neither in a backward pass nor by DDP's own forward
    exposed     = |outside \ (compute OR DDP's communication)|

DDP's own forward broadcasts buffers and, under ``join()``, checks which ranks still train. SyncBatchNorm's collectives
are part of the model. Collectives without a launch in the trace are excluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding, only_known, size
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.intervals import NO_SPANS, Spans, merge, subtract, union, union_of
from ddpprof.layout import ABSENT, Section, clean, in_ms, ms, table_of
from ddpprof.model import (
    UNKNOWN,
    CollectiveKind,
    Collectives,
    DdpModule,
    Int64Column,
    Mark,
    Phase,
    Rank,
    RecordedStep,
    Trace,
)
from ddpprof.topics.buckets.steps import SMALL_BYTES
from ddpprof.topics.script_code import lines_of_collectives
from ddpprof.topics.steps.overlap import marked_spans

_NEARLY_ALL = 0.9


class Place(StrEnum):
    """Position of a call within a step."""

    FORWARD = "forward"
    AFTER_FORWARD = "before the backward"
    AFTER_BACKWARD = "between the backward pass and the optimizer"
    OPTIMIZER = "optimizer"
    AFTER_OPTIMIZER = "after the optimizer"


class Purpose(StrEnum):
    """What a collective probably sends, judged by its size."""

    PARAMETERS = "parameters"
    """all-reduces that match the model's parameters in number or in bytes"""
    FEW_NUMBERS = "few numbers"
    """collectives of at most `SMALL_BYTES` each"""
    BARRIER = "barrier"
    OTHER = "other"
    """larger collectives, or collectives of unknown size"""


@dataclass(frozen=True, slots=True)
class OutsideCalls:
    """The collectives with the same purpose, place and kind in one step of one rank."""

    purpose: Purpose
    place: Place
    kind: str
    """name of the `CollectiveKind`, in lower case"""
    num_calls: int
    num_bytes: int | None
    """total bytes of all calls; ``None`` for a barrier, or if the trace does not show the size"""
    time_ns: int
    """time in which at least one of these collectives runs, including waiting for other ranks"""
    exposed_ns: int

    @property
    def key(self) -> tuple[Purpose, Place, str]:
        return self.purpose, self.place, self.kind


@dataclass(frozen=True, slots=True)
class _Calls:
    """Rows of ``Trace.collectives`` that are outside DDP."""

    rows: NDArray[np.int64]
    place: list[Place]
    kind: list[CollectiveKind]
    num_bytes: list[int]


def measure_outside(
    trace: Trace, step: int, parameters: Sequence[Sequence[int]], recorded: RecordedStep | None = None
) -> tuple[OutsideCalls, ...] | None:
    """Measure the collectives outside DDP in the step with index `step`; ``None`` without a DDP forward pass.

    `parameters`: bytes of each parameter of each DDP module, if known. `recorded`: the same step as recorded by
    ddpprof.
    """
    host, comm = trace.host_spans, trace.collectives
    if not (host.mark == Mark.FORWARD).any():
        return None
    calls = _calls(trace, step, spans_of_ddp(trace, recorded))
    purposes = _purposes(calls, parameters, _gradient_bytes(comm, step))
    groups: dict[tuple[Purpose, Place, CollectiveKind], list[int]] = {}
    for index, key in enumerate(zip(purposes, calls.place, calls.kind, strict=True)):
        groups.setdefault(key, []).append(index)
    busy = busy_around(trace, calls.rows)
    made = []
    for (purpose, place, kind), members in groups.items():
        rows, sizes = calls.rows[members], [calls.num_bytes[index] for index in members]
        spans = union_of(comm, rows)
        num_bytes = None if UNKNOWN in sizes or purpose is Purpose.BARRIER else sum(sizes)
        exposed = subtract(spans, busy).total_ns
        made.append(
            OutsideCalls(purpose, place, kind.name.lower(), len(rows), num_bytes, spans.total_ns, exposed)
        )  # fmt: skip
    return tuple(made)


def spans_of_ddp(trace: Trace, recorded: RecordedStep | None) -> Spans:
    """Return the spans of DDP's own work before and after the forward passes of its modules."""
    forwards = recorded.forwards if recorded is not None and trace.epoch_ns is not None else ()
    times = [times for f in forwards for times in ((f.start_ns, f.inner_start_ns), (f.inner_end_ns, f.end_ns))]
    spans = np.array(times, np.int64).reshape(-1, 2) - (trace.epoch_ns or 0)
    return union(spans[:, 0], spans[:, 1])


def _calls(trace: Trace, step: int, ddps_own: Spans) -> _Calls:
    comm = trace.collectives
    of_model = marked_spans(trace, Mark.SYNC_BATCH_NORM).contains(comm.launched_ns)
    of_ddp = ddps_own.contains(comm.launched_ns) | (comm.kind == CollectiveKind.BROADCAST)
    is_ddps = (comm.phase == Phase.FORWARD) & (of_ddp | of_model)
    in_backward = np.isin(comm.phase, (Phase.BACKWARD, Phase.FINALIZE))
    known = comm.launched_ns != UNKNOWN
    rows = np.flatnonzero((comm.step == step) & known & ~in_backward & ~is_ddps)
    is_barrier = barriers(trace).contains(comm.launched_ns[rows])
    kinds = np.where(is_barrier, CollectiveKind.BARRIER, comm.kind[rows])
    return _Calls(
        rows,
        _places(trace, comm.launched_ns[rows]),
        [CollectiveKind(kind) for kind in kinds.tolist()],
        comm.num_bytes[rows].tolist(),
    )


def barriers(trace: Trace) -> Spans:
    """Return the spans of ``c10d::barrier`` calls. In the trace, NCCL's barrier is an all-reduce of one element."""
    host = trace.host_spans
    names = [index for index, name in enumerate(trace.names) if name == "c10d::barrier"]
    rows = (host.mark == Mark.COLLECTIVE_CALL) & np.isin(host.name, names)
    return union_of(host, rows)


def _places(trace: Trace, launched_ns: Int64Column) -> list[Place]:
    """Return the place of each launch, determined by the last start or end of a host mark before it.

    An optimizer's step may contain forward and backward passes in a closure, or another optimizer's step. A launch
    before the first mark counts as after the optimizer, because steps end there.
    """
    host = trace.host_spans
    rows = np.flatnonzero(np.isin(host.mark, list(_PLACES)))
    times = np.concatenate((host.start_ns[rows], host.end_ns[rows]))
    order = np.argsort(times, kind="stable")
    last = np.searchsorted(times[order], launched_ns, side="right") - 1
    in_optimizer = marked_spans(trace, Mark.OPTIMIZER).contains(launched_ns)
    places = []
    for index, is_inside in zip(last.tolist(), in_optimizer.tolist(), strict=True):
        has_ended, row = divmod(int(order[index]), len(rows)) if index >= 0 else (0, 0)
        place = Place.AFTER_OPTIMIZER if index < 0 else _PLACES[Mark(host.mark[rows[row]])][has_ended]
        places.append(Place.OPTIMIZER if is_inside and place is Place.AFTER_OPTIMIZER else place)
    return places


_PLACES = {
    Mark.FORWARD: (Place.FORWARD, Place.AFTER_FORWARD),
    Mark.BACKWARD: (Place.AFTER_BACKWARD, Place.AFTER_BACKWARD),
    Mark.OPTIMIZER: (Place.OPTIMIZER, Place.AFTER_OPTIMIZER),
}


def _gradient_bytes(comm: Collectives, step: int) -> int | None:
    """Return the bytes that DDP reduces in the step; ``None`` if the trace has no sizes."""
    rows = (comm.step == step) & (comm.phase == Phase.BACKWARD) & (comm.kind == CollectiveKind.ALL_REDUCE)
    sizes = comm.num_bytes[rows]
    return int(sizes.sum()) if len(sizes) and (sizes != UNKNOWN).all() else None


def _purposes(calls: _Calls, parameters: Sequence[Sequence[int]], gradient_bytes: int | None) -> list[Purpose]:
    purposes = [_purpose(kind, size) for kind, size in zip(calls.kind, calls.num_bytes, strict=True)]
    for place in (Place.AFTER_BACKWARD, Place.OPTIMIZER, Place.AFTER_OPTIMIZER):
        here = [i for i, k in enumerate(calls.kind) if k is CollectiveKind.ALL_REDUCE and calls.place[i] is place]
        sizes = [calls.num_bytes[i] for i in here]
        for index in _that_carry(parameters, sizes, gradient_bytes):
            purposes[here[index]] = Purpose.PARAMETERS
    return purposes


def _purpose(kind: CollectiveKind, num_bytes: int) -> Purpose:
    if kind is CollectiveKind.BARRIER:
        return Purpose.BARRIER
    return Purpose.FEW_NUMBERS if UNKNOWN < num_bytes <= SMALL_BYTES else Purpose.OTHER


def _that_carry(parameters: Sequence[Sequence[int]], sizes: list[int], gradient_bytes: int | None) -> Iterable[int]:
    """Return the indices of the all-reduces at one place that carry a module's parameters or their gradients."""
    if UNKNOWN in sizes:
        enough = any(1 < len(module) <= len(sizes) <= len(module) + _MOST_FURTHER for module in parameters)
        return range(len(sizes)) if enough else ()
    if not parameters:
        return range(len(sizes)) if gradient_bytes and sum(sizes) >= _NEARLY_ALL * gradient_bytes else ()
    for module in parameters:
        flat = [index for index, size in enumerate(sizes) if size == sum(module) > SMALL_BYTES]
        if flat:
            return flat
        left, found = Counter(module), []
        for index, num_bytes in enumerate(sizes):
            if left[num_bytes]:
                left[num_bytes] -= 1
                found.append(index)
        if len(found) == len(module) > 1:
            return found
    return ()


_MOST_FURTHER = 2
"""if sizes are unknown, all-reduces still match a module's parameters if there are at most this many more, for example
one for a loss
"""


def busy_around(trace: Trace, rows: NDArray[np.int64]) -> Spans:
    """Return computation and other communication that may run during the given collectives."""
    comm = trace.collectives
    if not len(rows):
        return NO_SPANS
    begin, end = comm.start_ns[rows].min(), comm.end_ns[rows].max()
    others = np.setdiff1d(np.flatnonzero((comm.end_ns > begin) & (comm.start_ns < end)), rows)
    return merge(computation_around(trace, rows), union_of(comm, others))


def computation_around(trace: Trace, rows: NDArray[np.int64]) -> Spans:
    """Return computation that may run during the given collectives. There must be at least one collective."""
    comm, compute = trace.collectives, trace.compute
    begin, end = comm.start_ns[rows].min(), comm.end_ns[rows].max()
    return union_of(compute, np.flatnonzero((compute.end_ns > begin) & (compute.start_ns < end)))


def summarize_outside(ranks: Sequence[Sequence[tuple[OutsideCalls, ...] | None]]) -> tuple[OutsideCalls, ...] | None:
    """Return medians over steps, each from the rank with the least exposed time; ``None`` if no step was measured.

    Times of other ranks include waiting for slower ranks. Collectives that are missing in most steps are left out.
    """
    summaries = [summary for steps in ranks if (summary := _medians(steps)) is not None]
    if not summaries:
        return None
    least: dict[tuple[Purpose, Place, str], OutsideCalls] = {}
    for one in (one for summary in summaries for one in summary):
        if one.key not in least or one.exposed_ns < least[one.key].exposed_ns:
            least[one.key] = one
    everywhere = [one for key, one in least.items() if all(key in {other.key for other in s} for s in summaries)]
    return tuple(sorted(everywhere, key=lambda one: one.exposed_ns, reverse=True))


def _medians(steps: Sequence[tuple[OutsideCalls, ...] | None]) -> tuple[OutsideCalls, ...] | None:
    known = [{one.key: one for one in step} for step in steps if step is not None]
    if not known:
        return None
    made = []
    for key in dict.fromkeys(key for step in known for key in step):
        rows = [step[key] for step in known if key in step]
        if 2 * len(rows) <= len(known):
            continue
        sizes = [row.num_bytes for row in rows if row.num_bytes is not None]
        made.append(
            replace(
                rows[0],
                num_calls=round(median(row.num_calls for row in rows)),
                num_bytes=round(median(sizes)) if len(sizes) == len(rows) else None,
                time_ns=round(median(row.time_ns for row in rows)),
                exposed_ns=round(median(row.exposed_ns for row in rows)),
            )
        )
    return tuple(made)


def _of(outside: Sequence[OutsideCalls], view: View, *purposes: Purpose) -> list[OutsideCalls]:
    """Return the calls worth reporting. In the forward pass, return only barriers: the model may need other calls."""
    calls = [
        one
        for one in outside
        if one.purpose in purposes and (one.place is not Place.FORWARD or one.purpose is Purpose.BARRIER)
    ]
    return calls if view.worth(_exposed(calls)) else []


def _exposed(calls: Sequence[OutsideCalls]) -> int:
    return sum(one.exposed_ns for one in calls)


def _said(calls: Sequence[OutsideCalls]) -> str:
    parts = []
    for one in calls:
        volume = "" if one.num_bytes is None else f" of {size(one.num_bytes)} in all"
        parts.append(f"{one.num_calls} × {one.kind.replace('_', '-')}{volume}, {_WHERE[one.place]}")
    return f"{'; '.join(parts)}: {in_ms(_exposed(calls))} per step is exposed"


_WHERE = {
    Place.FORWARD: "in the forward pass",
    Place.AFTER_FORWARD: "between the forward and the backward pass",
    Place.AFTER_BACKWARD: "between the backward pass and the optimizer",
    Place.OPTIMIZER: "in the optimizer",
    Place.AFTER_OPTIMIZER: "between the optimizer and the next forward pass",
}


def parameter_averaging(outside: Sequence[OutsideCalls], view: View) -> Iterator[Finding]:
    """Report parameters or gradients that the script averages in addition to DDP."""
    calls = _of(outside, view, Purpose.PARAMETERS)
    before = [one for one in calls if one.place is Place.AFTER_BACKWARD]
    after = [one for one in calls if one.place is not Place.AFTER_BACKWARD]
    if view.worth(_exposed(after)):
        yield Finding(
            "parameter-averaging",
            "Parameters are averaged over the ranks in every step, in addition to DDP",
            f"{_said(after)}{lines_of_collectives(view)}; DDP averages gradients, so parameters are already equal on "
            "all ranks",
            "Remove this averaging. To average parameters instead of gradients, average them every N steps with "
            "torch's PeriodicModelAverager, PostLocalSGDOptimizer and DDP's post_localSGD_hook.",
            _exposed(after),
            numbers=only_known(num_calls=sum(one.num_calls for one in after), exposed_ns=_exposed(after)),
        )
    if view.worth(_exposed(before)) and not view.trains_beside_ddp:
        are_known = all(one.num_bytes is not None for one in before)
        yield Finding(
            "gradient-averaging",
            "The script averages gradients over the ranks, in addition to DDP"
            if are_known
            else "The script all-reduces a tensor for each parameter after the backward pass, in addition to DDP",
            _said(before)
            + lines_of_collectives(view)
            + ("" if are_known else "; the trace does not contain their sizes (use --record-shapes)"),
            "Remove this averaging: DDP has already averaged the gradients during backward()."
            if are_known
            else "Remove these all-reduces: during backward(), DDP has already averaged the gradients, which are "
            "equal on all ranks. Gradient norms are therefore also equal on all ranks, and need no "
            "communication.",
            _exposed(before),
            numbers=only_known(num_calls=sum(one.num_calls for one in before), exposed_ns=_exposed(before)),
        )


def metrics_every_step(outside: Sequence[OutsideCalls], view: View) -> Iterator[Finding]:
    """Report small tensors, such as a loss or an accuracy, that are reduced in every step."""
    calls = [one for one in _of(outside, view, Purpose.FEW_NUMBERS, Purpose.OTHER) if one.kind in _REDUCES]
    unsized = [one for one in calls if one.num_bytes is None and not _may_enter_the_loss(one)]
    calls = [one for one in calls if one.purpose is Purpose.FEW_NUMBERS or one in unsized]
    if not view.worth(_exposed(calls)):
        return
    number = sum(one.num_calls for one in calls)
    what = "1 collective per step" if number == 1 else f"{number} collectives per step"
    sends = "sends" if number == 1 else "send"
    yield Finding(
        "metrics-every-step",
        f"{what} outside DDP" if unsized else f"{what} {sends} only a few numbers",
        _said(calls)
        + lines_of_collectives(view)
        + ("; the trace lacks their sizes (use --record-shapes)" if unsized else "")
        + "; in each of them, every rank waits for the last rank",
        f"{'If these are metrics, accumulate' if unsized else 'Accumulate'} them on the device, and all-reduce them "
        "every N steps or once per epoch, with several values in one tensor. Keep collectives if the step needs their "
        "result, for example for loss normalization, gradient clipping, or a decision that all ranks share."
        f"{_gradients_by_hand(unsized)}{_of_trainer(view, calls)}",
        _exposed(calls),
        numbers=only_known(num_calls=number, exposed_ns=_exposed(calls)),
    )


def _of_trainer(view: View, calls: Sequence[OutsideCalls]) -> str:
    """Return a sentence about collectives that transformers' Trainer calls itself, if there are any."""
    if view.framework != "transformers" or all("gather" not in one.kind for one in calls):
        return ""
    return (
        " The Trainer itself adds up the number of tokens over all ranks in every step: "
        "TrainingArguments(average_tokens_across_devices=False) disables this, and each rank then averages its loss "
        "over its own tokens."
    )


def _may_enter_the_loss(call: OutsideCalls) -> bool:
    """Return whether the loss may need the collective's result, as with gathered embeddings."""
    return call.place is Place.AFTER_FORWARD and "gather" in call.kind


def _gradients_by_hand(unsized: Sequence[OutsideCalls]) -> str:
    """Return advice for collectives after the backward pass. They may reduce gradients."""
    if not any(one.place is Place.AFTER_BACKWARD for one in unsized):
        return ""
    return (
        " Collectives that average gradients of parameters outside DDP are needed in every step: put these parameters "
        "into the DDP module, or send their gradients in one tensor."
    )


_REDUCES = ("all_reduce", "reduce", "all_gather", "gather")


def optimizer_broadcasts(outside: Sequence[OutsideCalls], view: View) -> Iterator[Finding]:
    """Report an optimizer that updates a shard of the parameters on each rank and broadcasts the updated shard."""
    calls = [one for one in outside if one.place is Place.OPTIMIZER and one.kind == "broadcast"]
    if not view.worth(_exposed(calls)):
        return
    number = sum(one.num_calls for one in calls)
    pieces = "1 piece" if number == 1 else f"{number} pieces"
    fewer = "" if number <= (view.world_size or 1) else " parameters_as_bucket_view=True sends fewer and larger pieces."
    optimizers = [facts.optimizers or () for facts in view.records.values()]
    shards = [sum(one.state_bytes for one in own) for own in optimizers if any(one.is_sharded for one in own)]
    whole = f" ({size(sum(shards))} instead of {size(max(shards))})" if any(shards) else ""
    yield Finding(
        "optimizer-broadcasts",
        f"The optimizer broadcasts updated parameters in {pieces} per step",
        _said(calls),
        "ZeroRedundancyOptimizer does this because each rank holds only its own shard of the state. If memory allows, "
        f"use an ordinary optimizer, which does not communicate. Each rank then holds the whole state{whole}.{fewer}",
        _exposed(calls),
        numbers=only_known(num_calls=number, exposed_ns=_exposed(calls)),
    )


def barrier_in_loop(outside: Sequence[OutsideCalls], view: View) -> Iterator[Finding]:
    """Report ``barrier()`` in the training loop."""
    calls = _of(outside, view, Purpose.BARRIER)
    if not calls:
        return
    number = sum(one.num_calls for one in calls)
    yield Finding(
        "barrier-in-loop",
        f"{'There is a barrier' if number == 1 else f'There are {number} barriers'} in the training loop",
        f"{_said(calls)}{lines_of_collectives(view)}; on an accelerator, the host also waits for all launched work",
        "Do not call barrier() in the loop: DDP's all-reduces already synchronize the ranks in every step."
        + (_LIGHTNING_SYNCS if view.framework == "lightning" else ""),
        _exposed(calls),
        numbers=only_known(num_calls=number, exposed_ns=_exposed(calls)),
    )


_LIGHTNING_SYNCS = (
    " Lightning adds a barrier for each value that self.log(…, sync_dist=True) averages: log without sync_dist."
)


def outside_table(calls: Sequence[OutsideCalls], _report: ReportView) -> Iterable[Section]:
    if calls:
        yield table_of(
            "Collectives outside DDP, per step (medians)",
            calls,
            {
                "collective": lambda one: clean(one.kind.replace("_", "-"), most=30),
                "where": lambda one: one.place.value,
                "carries": lambda one: one.purpose.value,
                "calls": lambda one: str(one.num_calls),
                "kB": lambda one: ABSENT if one.num_bytes is None else f"{one.num_bytes / 1e3:.1f}",
                "ms": lambda one: ms(one.time_ns),
                "exposed ms": lambda one: ms(one.exposed_ns),
            },
            ("collective", "where", "carries"),
            "numbers of the rank with the least exposed time, because the other ranks also wait for slower ranks; "
            "exposed: time in which neither computation nor DDP's communication runs",
        )


def _of_rank(
    rank: Rank, steps: Sequence[int], modules: Sequence[DdpModule]
) -> tuple[tuple[OutsideCalls, ...] | None, ...] | None:
    """Return the calls in each step; ``None`` if the rank has no trace."""
    trace = rank.trace
    if trace is None:
        return None
    recorded = {step.number: step for step in rank.training_steps}
    parameters = [[parameter.num_bytes for parameter in module.parameters] for module in modules]
    return tuple(measure_outside(trace, step, parameters, recorded.get(trace.steps[step].number)) for step in steps)


SCRIPT_COLLECTIVES: Topic[tuple[tuple[OutsideCalls, ...] | None, ...], tuple[OutsideCalls, ...]] = Topic(
    name="outside",
    sections={"collectives": outside_table},
    rules=(parameter_averaging, metrics_every_step, barrier_in_loop, optimizer_broadcasts),
    of_rank=_of_rank,
    rank_type=tuple[tuple[OutsideCalls, ...] | None, ...],
    of_ranks=summarize_outside,
)
