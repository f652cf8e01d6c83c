"""The parts of a step from light recording, for runs without a trace, and during training.

    backward = from the end of the last DDP forward (the loss included) to the optimizer's start

The backward part therefore includes exposed communication, which only a trace can separate.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpprof.model.record import RecordedStep


@dataclass(frozen=True, slots=True)
class RecordedBreakdown:
    """Parts of one step by the host's clock, ns. They add up to the step."""

    forward_ns: int
    backward_and_comm_ns: int
    optimizer_ns: int
    data_ns: int
    other_ns: int


def measure_recorded_breakdown(step: RecordedStep) -> RecordedBreakdown | None:
    """Split a step into its parts; ``None`` if only its length was recorded."""
    if not step.forwards or step.data_ns is None:
        return None
    forward = sum(f.end_ns - f.start_ns for f in step.forwards)
    optimizer = sum(end - start for start, end in step.optimizers)
    backward = 0
    for index, begin in enumerate(f.end_ns for f in step.forwards):
        following = [start for start, _ in step.optimizers if start >= begin]
        following += [f.start_ns for f in step.forwards[index + 1 :]]
        backward += max(0, min(following, default=step.end_ns) - begin)
    total = step.end_ns - step.start_ns
    other = total - forward - optimizer - backward - step.data_ns
    return RecordedBreakdown(forward, backward, optimizer, step.data_ns, max(0, other))
