"""Which options of ``ddpprof trace`` suit a training of few steps?"""

from __future__ import annotations

DEFAULT_STEPS = 17
"""number of steps that a training must take for everything to be recorded by default"""
STEP_OPTIONS = ("--skip-first", "--cost-steps", "--warmup", "--steps")
_MOST_PROFILED = 5
_MOST_FOR_COST = 8
_FEWEST = 2
"""least number of steps: DDP rebuilds its buckets in the second, and ranks agree on what to record after the first"""


def options_for(num_steps: int, least_skipped: int = 1) -> str | None:
    """Return the options that tell most about `num_steps` steps; ``None`` if they cannot tell anything.

    `least_skipped`: initial steps that are never recorded.
    """
    if num_steps < max(_FEWEST, least_skipped + 1):
        return None
    if num_steps >= DEFAULT_STEPS and least_skipped == 1:
        return ""
    skipped = max(least_skipped, min(3, max(1, num_steps // 4)))
    warmup = 1 if num_steps - skipped > 1 else 0
    profiled = min(_MOST_PROFILED, num_steps - skipped - warmup)
    left = num_steps - skipped - warmup - profiled
    for_cost = min(_MOST_FOR_COST, left - left % 2)
    numbers = (skipped, for_cost, warmup, profiled)
    return " ".join(f"{option} {number}" for option, number in zip(STEP_OPTIONS, numbers, strict=True))
