"""Which steps does ``ddpprof trace`` record by default, and which options suit a short training?"""

from __future__ import annotations

SKIP_FIRST = 3
REBUILT = 3
"""number of steps after which DDP has rebuilt its buckets and torch's logging data shows it"""
COST_STEPS = 8
WARMUP = 1
STEPS = 5
TORCH_WAITS = 11
"""initial steps of a reducer in which torch may wait for an accelerator in order to time an iteration"""
STEP_OPTIONS = ("--skip-first", "--cost-steps", "--warmup", "--steps")
_FEWEST = 2
"""minimum number of steps: DDP rebuilds its buckets in the second, and ranks agree on what to record after the first"""


def least_skipped(on_accelerator: bool) -> int:
    """Return the number of initial steps that are never recorded."""
    return TORCH_WAITS if on_accelerator else 1


def default_steps(on_accelerator: bool) -> int:
    """Return the number of steps that training must take for everything to be recorded by default."""
    return max(SKIP_FIRST, least_skipped(on_accelerator)) + COST_STEPS + WARMUP + STEPS


def options_for(num_steps: int, on_accelerator: bool = False) -> str | None:
    """Return the options that record the most from `num_steps` steps; ``None`` if nothing can be recorded."""
    least = least_skipped(on_accelerator)
    if num_steps < max(_FEWEST, least + 1):
        return None
    if num_steps >= default_steps(on_accelerator):
        return ""
    skipped = max(least, min(SKIP_FIRST, max(1, num_steps // 4)))
    warmup = WARMUP if num_steps - skipped > 1 else 0
    profiled = min(STEPS, num_steps - skipped - warmup)
    left = num_steps - skipped - warmup - profiled
    for_cost = min(COST_STEPS, left - left % 2)
    numbers = (skipped, for_cost, warmup, profiled)
    return " ".join(f"{option} {number}" for option, number in zip(STEP_OPTIONS, numbers, strict=True))
