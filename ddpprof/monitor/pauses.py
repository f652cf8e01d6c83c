"""What do checkpoints, evaluation, recording and new epochs cost? Such steps are longer, and are no slow-down.

extra time = length of these steps - as many normal steps
"""

from __future__ import annotations

import numpy as np

from ddpprof.model.pulse import StepFlag
from ddpprof.model.slowdown import Pause, PauseKind
from ddpprof.monitor.job_steps import JobSteps

_KINDS = (
    (StepFlag.EVALUATED, PauseKind.EVALUATION),
    (StepFlag.RECORDED, PauseKind.RECORDING),
    (StepFlag.BEGAN_EPOCH, PauseKind.EPOCH),
    (StepFlag.RAN_OUT, PauseKind.EPOCH),
)
"""A step with several flags counts for the first of them."""


def pauses_in(steps: JobSteps) -> tuple[Pause, ...]:
    """Return the pauses of each kind that there were; none if no normal step shows how much longer they took.

    In a step that saves and evaluates, what saving took counts for the checkpoint, and the rest for the evaluation.
    """
    if not steps.is_usual.any():
        return ()
    normal_ns = int(np.median(steps.length_ns[steps.is_usual]))
    left_ns = np.maximum(steps.length_ns - normal_ns, 0)
    saved, evaluated = ((steps.flags & flag) != 0 for flag in (int(StepFlag.SAVED), int(StepFlag.EVALUATED)))
    saving_ns = np.max([rank.save_ns for rank in steps.ranks.values()], axis=0)
    saving_ns = np.where(saved, np.where(evaluated, np.minimum(left_ns, saving_ns), left_ns), 0)
    pauses = [Pause(PauseKind.SAVE, int(saved.sum()), int(saving_ns.sum()))] if saved.any() else []
    left_ns, left = left_ns - saving_ns, evaluated | ~saved
    for flag, kind in _KINDS:
        mine = left & ((steps.flags & int(flag)) != 0)
        left &= ~mine
        if mine.any():
            pauses.append(Pause(kind, int(mine.sum()), int(left_ns[mine].sum())))
    return tuple(pauses)
