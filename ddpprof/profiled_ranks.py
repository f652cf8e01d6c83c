"""Which ranks of a job are profiled? All of them or, in a large job, a sample.

The distance between sampled ranks is odd, so that on hosts with an even number of ranks every local rank is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST = 128
"""largest world size at which all ranks are profiled"""
_ABOUT = 64
"""approximate number of profiled ranks in a larger job"""

Spans = Sequence[Sequence[int]]
"""first and last rank of each span, as the user chose them; empty if the default rule applies"""


def is_profiled(rank: int, world_size: int, chosen: Spans) -> bool:
    if chosen:
        return any(first <= rank <= last for first, last in chosen)
    return rank % _distance(world_size) == 0


def rule(world_size: int, chosen: Spans) -> str | None:
    """Return a description of which ranks are profiled; ``None`` if all are."""
    if chosen:
        named = ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in chosen)
        return f"of {world_size} ranks, only the ones given by --profile-ranks were profiled: {named}"
    if world_size <= MOST:
        return None
    each = _distance(world_size)
    return (
        f"only every {each}th of {world_size} ranks was profiled as a sample (0, {each}, {2 * each}, …); to profile "
        f"other ranks or all of them: ddpprof trace --profile-ranks 0-{world_size - 1}"
    )


def _distance(world_size: int) -> int:
    return 1 if world_size <= MOST else -(-world_size // _ABOUT) | 1
