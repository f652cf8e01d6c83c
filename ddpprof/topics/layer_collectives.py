r"""Measure the collectives that the model's layers, such as SyncBatchNorm, call in the forward and backward passes.

    forward  = launched within DDP's forward, neither by DDP itself nor as a barrier
    backward = launched by a node of the autograd graph, but not by a gradient hook, which launches DDP's buckets
    exposed  = |layers' communication \ compute|

SyncBatchNorm gathers its statistics in the forward pass, and all-reduces sums of their gradients in the backward pass.
A layer waits for the result immediately, so hardly any of this communication is hidden. The layer may also have to wait
for buckets that are being sent. Collectives of the backward pass count only if the trace shows the gradient hooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_high
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding, Predicted, Predictions, only_known, sync_batch_norm_change
from ddpprof.engine.numbers import Number
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import subtract, union, union_of
from ddpprof.layout import in_ms
from ddpprof.model import CollectiveKind, DdpModule, Mark, Phase, Rank, RecordedStep, Trace
from ddpprof.topics.buckets.steps import calls_in_backward, launched_in
from ddpprof.topics.script_code import line_during, short_line
from ddpprof.topics.script_collectives import barriers, computation_around, spans_of_ddp
from ddpprof.topics.steps.overlap import marked_spans

_SYNC_BATCH_NORM = "SyncBatchNorm"
_NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, slots=True)
class LayerCalls:
    """Collectives that layers call in one step of one rank, or medians over steps."""

    layer: Annotated[str | None, Number("autograd function that calls most of the collectives; null if unknown")]
    num_forward: Annotated[int, Number("number of collectives in the forward pass")]
    num_backward: Annotated[int, Number("number of collectives in the backward pass")]
    time_ns: Annotated[
        int, Number("time during which at least one of these collectives runs, including waiting for other ranks")
    ]
    exposed_ns: Annotated[int, Number("part of `time_ns` during which no computation runs")]
    line: Annotated[str | None, Number("line of the script that calls most of the forward collectives")] = None


def measure_layer_calls(trace: Trace, step: int, recorded: RecordedStep | None = None) -> LayerCalls | None:
    """Measure the step with index `step`; return ``None`` if no layer calls a collective.

    `recorded`: the step in ddpprof's record.
    """
    comm = trace.collectives
    forward, backward = _in_forward(trace, launched_in(trace, step), recorded), calls_in_backward(trace, step)
    rows = np.sort(np.concatenate((forward, backward)))
    if not len(rows):
        return None
    spans = union_of(comm, rows)
    exposed = subtract(spans, computation_around(trace, rows))
    layer = _layer(trace, forward, backward)
    return LayerCalls(layer, len(forward), len(backward), spans.total_ns, exposed.total_ns)


def _in_forward(trace: Trace, in_step: NDArray[np.bool_], recorded: RecordedStep | None) -> NDArray[np.int64]:
    comm = trace.collectives
    is_ddps = spans_of_ddp(trace, recorded).contains(comm.launched_ns) | (comm.kind == CollectiveKind.BROADCAST)
    rows = np.flatnonzero(in_step & (comm.phase == Phase.FORWARD) & ~is_ddps)
    return rows[~barriers(trace).contains(comm.launched_ns[rows])]


def _layer(trace: Trace, forward: NDArray[np.int64], backward: NDArray[np.int64]) -> str | None:
    """Return the name of the autograd function that launches the collectives, from its nodes in the backward pass."""
    launched_ns = trace.collectives.launched_ns
    if marked_spans(trace, Mark.SYNC_BATCH_NORM).contains(launched_ns[forward]).any():
        return _SYNC_BATCH_NORM
    host = trace.host_spans
    nodes = np.flatnonzero(host.mark == Mark.BACKWARD)
    names: Counter[str] = Counter()
    for asked_ns in launched_ns[backward].tolist():
        around = nodes[(host.start_ns[nodes] <= asked_ns) & (host.end_ns[nodes] > asked_ns)]
        names[trace.names[host.name[around[-1]]]] += 1  # rows are sorted by start, so the last one is the innermost
    return names.most_common(1)[0][0].removeprefix(_NODE).removesuffix("Backward") if names else None


def _of_rank(rank: Rank, steps: Sequence[int], _modules: Sequence[DdpModule]) -> LayerCalls | None:
    if rank.trace is None:
        return None
    recorded = {step.number: step for step in rank.training_steps}
    made = [measure_layer_calls(rank.trace, step, recorded.get(rank.trace.steps[step].number)) for step in steps]
    known = [one for one in made if one is not None]
    if 2 * len(known) <= len(made):
        return None
    return LayerCalls(
        layer=next((one.layer for one in known if one.layer is not None), None),
        num_forward=median_high(one.num_forward for one in known),
        num_backward=median_high(one.num_backward for one in known),
        time_ns=round(median(one.time_ns for one in known)),
        exposed_ns=round(median(one.exposed_ns for one in known)),
        line=_line_of(rank, rank.trace, steps, recorded),
    )


def _line_of(rank: Rank, trace: Trace, steps: Sequence[int], recorded: Mapping[int, RecordedStep]) -> str | None:
    """Return the line that the host runs while these collectives run or, on an accelerator, when it launches them."""
    comm = trace.collectives
    of_steps = [_in_forward(trace, launched_in(trace, step), recorded.get(trace.steps[step].number)) for step in steps]
    rows = np.concatenate(of_steps)
    launched_ns = comm.launched_ns[rows]
    return line_during(rank, union(launched_ns, comm.end_ns[rows] if trace.device == "cpu" else launched_ns + 1))


def doubted(predictions: Predictions, calls: LayerCalls | None) -> Predictions:
    """If layers communicate in the backward pass, widen the predicted gains from more overlap to include zero.

    With more overlap, these collectives wait for buckets in transit, which delays the backward pass. The replay does
    not model these collectives.
    """
    if calls is None or not calls.num_backward:
        return predictions

    def at_least_nothing(one: Predicted | None) -> Predicted | None:
        return None if one is None else replace(one, low_ns=min(one.low_ns, 0))

    best = predictions.best_buckets
    return replace(
        predictions,
        best_buckets=None if best is None else replace(best, predicted=at_least_nothing(best.predicted)),
        aligned_buckets=at_least_nothing(predictions.aligned_buckets),
        without_unused_search=at_least_nothing(predictions.without_unused_search),
    )


def layer_collectives(calls: LayerCalls, view: View) -> Iterator[Finding]:
    """Report collectives of the model's layers, if computation waits for their results."""
    if view.is_compiled or not view.worth(calls.exposed_ns):
        return
    number = calls.num_forward + calls.num_backward
    is_sync_batch_norm = calls.layer == _SYNC_BATCH_NORM
    at = f" (at {short_line(calls.line)})" if calls.line is not None and not is_sync_batch_norm else ""
    where = f"{calls.num_forward} in the forward pass{at} and {calls.num_backward} in the backward pass"
    who = f"{calls.layer} calls" if calls.layer is not None else "The model's layers call"
    yield Finding(
        "layer-collectives",
        f"{who} {number} collective{'' if number == 1 else 's'} per step, and computation waits for the results",
        f"{where}; {in_ms(calls.exposed_ns)} per step is exposed",
        _WITHOUT_SYNC if is_sync_batch_norm else _FEWER if calls.num_forward > 1 else _EARLIER,
        calls.exposed_ns,
        may_be_meant=True,
        change=sync_batch_norm_change() if is_sync_batch_norm else None,
        numbers=only_known(num_forward=calls.num_forward, num_backward=calls.num_backward, exposed_ns=calls.exposed_ns),
    )


_WITHOUT_SYNC = (
    "If a single rank's batch is large enough for batch statistics, do not call convert_sync_batchnorm(): plain "
    "BatchNorm does not communicate. Otherwise, convert only the layers that need it. Both changes affect training: "
    "compare the accuracy."
)
_EARLIER = (
    "Send less data: for example, project features to fewer dimensions before they are gathered. Or start the "
    "collective with async_op=True as soon as its input is computed, and wait where the result is needed. Ranks that "
    "arrive earlier also wait there for the last rank."
)
_FEWER = (
    "Send the layer's data in one tensor instead of several, or start the collective with async_op=True and wait "
    "where the result is needed."
)

LAYER_COLLECTIVES: Topic[LayerCalls, LayerCalls] = Topic(
    "layer_collectives",
    rules=(layer_collectives,),
    of_rank=_of_rank,
    rank_type=LayerCalls,
    of_ranks=lambda ranks: min(ranks, key=lambda one: one.exposed_ns),
)
"""calls on the rank with the least exposed time, because the time on other ranks includes waiting for slower ranks"""
