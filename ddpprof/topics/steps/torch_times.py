"""Do ddpprof's times of a step agree with DDP's own times, from `_get_ddp_logging_data()`?

DDP's definitions differ from ddpprof's, so the columns are computed from ddpprof's events by DDP's definitions:

    forward    start of the DDP forward to its end, including buffer sync   (ddpprof's counts forward ops only)
    backward   end of the DDP forward to the end of the graph's last node   (ours counts backward ops only)
    comm       first bucket's launch until all are finished and copied into the gradients, including gaps
               (ours is the union of the collectives)
    overlap    the part of `comm` before the end of `backward`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpprof.model import Mark, RecordedStep, Trace
from ddpprof.model.recorded_step import TORCH_TIMES
from ddpprof.topics.buckets.steps import BucketStep


@dataclass(frozen=True, slots=True)
class TorchTimes:
    """One step of one DDP module, ns: ddpprof's times by DDP's definitions, and DDP's own times."""

    forward_ns: int
    backward_ns: int
    comm_ns: int
    overlap_ns: int
    torch_forward_ns: int
    torch_backward_ns: int
    torch_comm_ns: int
    torch_overlap_ns: int


def compare_with_torch(
    module: int, step: RecordedStep, buckets: tuple[BucketStep, ...], trace: Trace, logged: Mapping[str, int]
) -> TorchTimes | None:
    """Compare with DDP's times `logged` of the same iteration; ``None`` if either side lacks a time."""
    forwards = [f for f in step.forwards if f.module == module and f.synchronises]
    mine = [b for b in buckets if b.module == module]
    launched = [b.launched_ns for b in mine if b.launched_ns is not None]
    finished = [b.finished_ns for b in mine if b.finished_ns is not None]
    if len(forwards) != 1 or not mine or any(name not in logged for name in TORCH_TIMES):
        return None
    if len(launched) < len(mine) or len(finished) < len(mine):
        return None
    backward = _last_end(trace, step.number, Mark.BACKWARD, mine[0].origin_ns, at_least=max(launched))
    finished_all = _last_end(trace, step.number, Mark.BUCKET_COPY_OUT, mine[0].origin_ns, at_least=max(finished))
    return TorchTimes(
        forward_ns=forwards[0].inner_end_ns - forwards[0].start_ns,
        backward_ns=backward,
        comm_ns=finished_all - min(launched),
        overlap_ns=max(0, min(backward, finished_all) - min(launched)),
        torch_forward_ns=logged[TORCH_TIMES[0]],
        torch_backward_ns=logged[TORCH_TIMES[1]],
        torch_comm_ns=logged[TORCH_TIMES[2]],
        torch_overlap_ns=logged[TORCH_TIMES[3]],
    )


def _last_end(trace: Trace, number: int, mark: Mark, origin_ns: int, at_least: int) -> int:
    """Return when the step's last host span of that mark ends, ns since `origin_ns`."""
    spans = trace.host_spans
    step = [s.number for s in trace.steps].index(number)
    ends = spans.end_ns[(spans.step == step) & (spans.mark == mark)]
    if trace.epoch_ns is None or not len(ends):
        return at_least
    return max(at_least, int(ends.max()) + trace.epoch_ns - origin_ns)
