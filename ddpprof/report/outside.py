"""What the script does on its own account beside DDP: other collectives."""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.events import DdpModule, Rank
from ddpprof.measures.outside import OutsideCalls, measure_outside, summarise_outside
from ddpprof.report.ranks import training_steps, whole_steps


def outside_ddp(ranks: Sequence[Rank], modules: Sequence[DdpModule]) -> tuple[OutsideCalls, ...] | None:
    """Collectives that are not DDP's, per step; ``None`` where no rank's trace has a DDP forward."""
    parameters = [[parameter.num_bytes for parameter in module.parameters] for module in modules]
    return summarise_outside([_steps(rank, parameters) for rank in ranks])


def _steps(rank: Rank, parameters: Sequence[Sequence[int]]) -> list[tuple[OutsideCalls, ...] | None]:
    if rank.trace is None:
        return []
    recorded, numbers = training_steps(rank.record), rank.trace.steps
    by_number = {step.number: step for step in recorded}
    return [
        measure_outside(rank.trace, step, parameters, by_number.get(numbers[step].number))
        for step in whole_steps(rank.trace, recorded)
    ]
