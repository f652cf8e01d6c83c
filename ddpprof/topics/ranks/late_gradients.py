"""With which gradient does a slow rank first fall behind? The slow code runs between it and the previous gradient.

    delay of a parameter  = when its gradient was accumulated - end of the step's DDP forward
    excess of a rank      = its delay - the median delay of the other ranks, median over steps
    jump of a parameter   = its excess - that of the previous gradient, in the order in which they became ready

Delays are spans of each rank's own clock. They do not include what a rank loses before the end of its forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import DdpModule, RecordedStep
from ddpprof.topics.buckets.steps import pass_fits

SHARE_WORTH_NAMING = 0.1
"""least share of the rank's total delay in the module"""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LateGradient:
    module: int
    parameter: str
    previous_parameter: str | None
    """parameter whose gradient became ready just before; ``None`` for the first, counted from the end of the forward"""
    jump_ns: int
    excess_ns: int
    num_steps: int


def find_late_gradients(
    modules: Sequence[DdpModule], ranks: Mapping[int, Sequence[RecordedStep]], slow_rank: int
) -> tuple[LateGradient, ...] | None:
    """Return the gradients at which the rank falls behind, largest jump first; noise also causes jumps, but small ones.

    This is useful for a rank that is late in its backward pass. Returns ``None`` if no other rank has the same steps.
    """
    delays = {rank: _delays(modules, steps) for rank, steps in ranks.items()}
    mine = delays.pop(slow_rank, {})
    found: list[LateGradient] = []
    compared = False
    for module in sorted({module for module, _ in mine}):
        steps = [step for of, step in mine if of == module and any((of, step) in other for other in delays.values())]
        if steps:
            others = [[other[module, step] for other in delays.values() if (module, step) in other] for step in steps]
            usual = np.array([np.median(of_step, axis=0) for of_step in others])
            found += _jumps(modules[module], module, np.array([mine[module, step] for step in steps]), usual)
            compared = True
    return tuple(sorted(found, key=lambda one: -one.jump_ns)) if compared else None


def _delays(modules: Sequence[DdpModule], steps: Sequence[RecordedStep]) -> dict[tuple[int, tuple[int, int]], _Floats]:
    """Return module, step and position of the pass → delay of each parameter, NaN for those without gradient."""
    found = {}
    for step in steps:
        for place, one in enumerate(step.passes):
            if pass_fits(modules, one):
                since = [np.nan if time is None else time - one.origin_ns for time in one.ready_ns]
                found[one.module, (step.number, place)] = np.array(since, np.float64)
    return found


def _jumps(ddp: DdpModule, module: int, mine: _Floats, usual: _Floats) -> list[LateGradient]:
    """Return the jumps worth naming. `mine` and `usual`: [num_steps, num_parameters]."""
    seen = np.flatnonzero(~np.isnan(mine - usual).all(axis=0))
    order = seen[np.argsort(np.nanmedian(usual[:, seen], axis=0), kind="stable")]
    excess = np.nanmedian((mine - usual)[:, order], axis=0)
    jumps = np.diff(excess, prepend=0.0)
    counts = np.count_nonzero(~np.isnan((mine - usual)[:, order]), axis=0)
    worth_naming = SHARE_WORTH_NAMING * jumps[jumps > 0].sum()
    names = [ddp.parameters[index].name for index in order.tolist()]
    return [
        LateGradient(
            module=module,
            parameter=names[place],
            previous_parameter=names[place - 1] if place else None,
            jump_ns=round(float(jumps[place])),
            excess_ns=round(float(excess[place])),
            num_steps=int(counts[place]),
        )
        for place in np.flatnonzero((jumps > 0) & (jumps >= worth_naming)).tolist()
    ]
