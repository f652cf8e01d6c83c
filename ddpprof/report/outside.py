"""What the script does on its own account beside DDP: other collectives."""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.events import DdpModule, Rank
from ddpprof.measures.outside import OutsideCalls, measure_outside, summarise_outside
from ddpprof.report.ranks import baseline_steps, training_steps, whole_steps


def outside_ddp(ranks: Sequence[Rank], modules: Sequence[DdpModule]) -> tuple[OutsideCalls, ...] | None:
    """Collectives that are not DDP's, per step; ``None`` where no rank's trace has a DDP forward."""
    parameters = [[parameter.num_bytes for parameter in module.parameters] for module in modules]
    return summarise_outside([_steps(rank, parameters) for rank in ranks])


def _steps(rank: Rank, parameters: Sequence[Sequence[int]]) -> list[tuple[OutsideCalls, ...] | None]:
    if rank.trace is None:
        return []
    left_out = set(baseline_steps(rank))
    steps = [step for step in whole_steps(rank.trace, training_steps(rank.record)) if step not in left_out]
    recorded = {step.number: step for step in training_steps(rank.record)}
    numbers = rank.trace.steps
    return [measure_outside(rank.trace, step, parameters, recorded.get(numbers[step].number)) for step in steps]
