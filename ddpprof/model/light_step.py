"""The parts of a step from light recording, for runs without a trace, and during training.

    backward = from the end of a DDP forward with gradients to the next forward or the optimizer's start

The backward part therefore includes the loss and exposed communication, which only a trace can separate. If a step uses
several batches, waits for further batches also fall between these times; they count as data unless they may have
happened elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ddpprof.engine.numbers import Number
from ddpprof.model.recorded_step import RecordedStep


@dataclass(frozen=True, slots=True)
class RecordedBreakdown:
    """Parts of one step by the host's clock, ns. They add up to the step."""

    forward_ns: Annotated[int, Number("the forward; null if only the length of the step is known", metric="forward")]
    backward_and_comm_ns: Annotated[
        int, Number("from the forward to the optimizer, with exposed communication", metric="backward and comm")
    ]
    optimizer_ns: Annotated[int, Number("the optimizer", metric="optimizer")]
    data_ns: Annotated[int, Number("waiting for data", metric="data")]
    other_ns: Annotated[int, Number("the rest of the step", metric="other")]


def measure_recorded_breakdown(step: RecordedStep) -> RecordedBreakdown | None:
    """Split a step into its parts; ``None`` if only its length was recorded, or a part would have a negative length."""
    if not step.forwards or step.data_ns is None:
        return None
    forward = sum(f.end_ns - f.start_ns for f in step.forwards)
    optimizer = sum(end - start for start, end in step.optimizers)
    if min(forward, optimizer, step.data_ns) < 0:
        return None
    backward = 0
    for index, one in enumerate(step.forwards):
        if one.has_gradients:
            following = [start for start, _ in step.optimizers if start >= one.end_ns]
            following += [f.start_ns for f in step.forwards[index + 1 :]]
            backward += max(0, min(following, default=step.end_ns) - one.end_ns)
    left = max(0, step.end_ns - step.start_ns - forward - optimizer - step.data_ns)
    backward = min(backward, left)
    return RecordedBreakdown(forward, backward, optimizer, step.data_ns, left - backward)
