"""What do checkpoints, evaluation, recording and new epochs cost? Such steps are longer, and are no slow-down.

extra time = length of these steps - as many normal steps
"""

from __future__ import annotations

import numpy as np

from ddpprof.model.pulse import StepFlag
from ddpprof.model.slowdown import Pause, PauseKind
from ddpprof.monitor.job_steps import JobSteps

_KINDS = (
    (StepFlag.SAVED, PauseKind.SAVE),
    (StepFlag.EVALUATED, PauseKind.EVALUATION),
    (StepFlag.RECORDED, PauseKind.RECORDING),
    (StepFlag.BEGAN_EPOCH, PauseKind.EPOCH),
    (StepFlag.RAN_OUT, PauseKind.EPOCH),
)
"""A step with several flags counts for the first of them."""


def pauses_in(steps: JobSteps) -> tuple[Pause, ...]:
    """Return the pauses of each kind that there were; none if no normal step shows how much longer they took."""
    if not steps.is_usual.any():
        return ()
    normal_ns = int(np.median(steps.length_ns[steps.is_usual]))
    pauses, left = [], np.ones(len(steps), bool)
    for flag, kind in _KINDS:
        mine = left & ((steps.flags & int(flag)) != 0)
        left &= ~mine
        extra_ns = int(np.maximum(steps.length_ns[mine] - normal_ns, 0).sum())
        if mine.any():
            pauses.append(Pause(kind, int(mine.sum()), extra_ns))
    return tuple(pauses)
