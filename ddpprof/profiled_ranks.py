"""Which ranks of a job are profiled? All, but in a large job, whose traces would be many, some that stand for the rest.

The distance between those is odd, so that on hosts with an even number of ranks each place on a host has its turn.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST = 128
"""In a job of more ranks only some are profiled."""
_ABOUT = 64
"""So many then."""

Spans = Sequence[Sequence[int]]
"""first and last of each, as the user chose them; empty: the rule holds"""


def is_profiled(rank: int, world_size: int, chosen: Spans) -> bool:
    if chosen:
        return any(first <= rank <= last for first, last in chosen)
    return rank % _distance(world_size) == 0


def rule(world_size: int, chosen: Spans) -> str | None:
    """Return in words which ranks are profiled; ``None``: all of them."""
    if chosen:
        named = ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in chosen)
        return f"of {world_size} ranks only those that --profile-ranks names were profiled: {named}"
    if world_size <= MOST:
        return None
    each = _distance(world_size)
    return (
        f"of {world_size} ranks every {each}th was profiled (0, {each}, {2 * each}, …), which stand for the others; "
        f"to profile others, or all: ddpprof trace --profile-ranks 0-{world_size - 1}"
    )


def _distance(world_size: int) -> int:
    return 1 if world_size <= MOST else -(-world_size // _ABOUT) | 1
