"""Determine which ranks and steps are recorded, by default or as selected by the user, for example by ``0-7,64``.

In a large job, only a sample of the ranks is profiled. The distance between sampled ranks is odd, so that every local
rank is sampled if the number of ranks per host is even.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numbers:
    """A set of integers, stored as spans."""

    spans: tuple[tuple[int, int], ...]
    """first and last number of each span"""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Numbers:
        spans: list[tuple[int, int]] = []
        for number in sorted(set(numbers)):
            if spans and spans[-1][1] == number - 1:
                spans[-1] = (spans[-1][0], number)
            else:
                spans.append((number, number))
        return cls(tuple(spans))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(first <= number <= last for first, last in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    @property
    def are_several(self) -> bool:
        return len(self.spans) > 1 or any(first < last for first, last in self.spans)

    def __str__(self) -> str:
        return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self.spans)

    def without(self, there: Iterable[int]) -> Numbers:
        """Return the numbers that are not in `there`."""
        left: list[tuple[int, int]] = []
        known = sorted(set(there))
        for first, last in self.spans:
            begin = first
            for number in known:
                if begin <= number <= last:
                    if begin < number:
                        left.append((begin, number - 1))
                    begin = number + 1
            if begin <= last:
                left.append((begin, last))
        return Numbers(tuple(left))


MOST = 128
"""largest world size at which all ranks are profiled"""
_ABOUT = 64
"""approximate number of ranks that are profiled in a larger job"""

Spans = Sequence[Sequence[int]]
"""first and last rank of each span of ranks that the user selected; empty if the user selected none"""


def is_profiled(rank: int, world_size: int, chosen: Spans) -> bool:
    if chosen:
        return any(first <= rank <= last for first, last in chosen)
    return rank % _distance(world_size) == 0


def rule(world_size: int, chosen: Spans) -> str | None:
    """Return a sentence that says which ranks are profiled; ``None`` if all ranks are profiled."""
    if chosen:
        named = ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in chosen)
        return f"of the {world_size} ranks, --profile-ranks selected these for profiling: {named}"
    if world_size <= MOST:
        return None
    each = _distance(world_size)
    return (
        f"only one in {each} of the {world_size} ranks was profiled, as a sample (0, {each}, {2 * each}, …). To "
        f"profile all ranks, use: ddpprof trace --profile-ranks 0-{world_size - 1}"
    )


def _distance(world_size: int) -> int:
    return 1 if world_size <= MOST else -(-world_size // _ABOUT) | 1


SKIP_FIRST = 3
REBUILT = 3
"""number of steps after which DDP has rebuilt its buckets, and PyTorch's DDP logging data describes the new buckets"""
COST_STEPS = 8
WARMUP = 1
STEPS = 5
TORCH_WAITS = 11
"""number of initial steps in which DDP's reducer may wait for the accelerator in order to time an iteration"""
STEP_OPTIONS = ("--skip-first", "--cost-steps", "--warmup", "--steps")
_FEWEST = 2
"""minimum number of steps in a job: after the first step, ranks agree on what to record; in the second, DDP rebuilds
its buckets
"""


def least_skipped(on_accelerator: bool) -> int:
    """Return the number of initial steps that are never recorded."""
    return TORCH_WAITS if on_accelerator else 1


def default_steps(on_accelerator: bool) -> int:
    """Return the number of training steps that a job needs for a complete recording with default settings."""
    return max(SKIP_FIRST, least_skipped(on_accelerator)) + COST_STEPS + WARMUP + STEPS


def options_for(num_steps: int, on_accelerator: bool = False) -> str | None:
    """Return the options that record as many of `num_steps` steps as possible; ``None`` if no step can be recorded."""
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
