"""The losses of one rank's steps: ``rank-N.losses.json``."""

from __future__ import annotations

import msgspec

from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.rundir import losses_file

Losses = tuple[tuple[float, ...], ...]
"""for each step, from the first one on, the loss of each backward pass that began with a scalar"""


def load_losses(directory: Location, rank: int) -> Losses | None:
    """Load one rank's losses; ``None`` if it left none that can be read."""
    try:
        steps = msgspec.json.decode(read_small(directory / losses_file(rank)), type=list[list[str]])
        return tuple(tuple(map(float.fromhex, step)) for step in steps)
    except (OSError, ValueError, OverflowError, RecursionError):  # msgspec's errors are ValueErrors
        return None
