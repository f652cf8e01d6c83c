"""How long would a collective have taken with the link to itself?

    shared duration = ∫ dt / k(t) over its span,   k(t) = number of collectives of its rank that run at t

While k of them run, each gets 1/k of the time, as if they shared the link evenly. Without others, this is its own
duration. gloo runs two at once over one connection; NCCL runs those of several streams at once.
"""

from __future__ import annotations

import numpy as np

from ddpprof.model import Collectives, Int64Column


def shared_durations_ns(comm: Collectives) -> Int64Column:
    """Return the shared duration of every row."""
    if not len(comm):
        return np.empty(0, np.int64)
    times = np.concatenate((comm.start_ns, comm.end_ns))
    change = np.repeat([1, -1], len(comm))
    order = np.argsort(times, kind="stable")
    times = times[order]
    running = np.cumsum(change[order])[:-1]
    share = np.diff(times) / np.maximum(running, 1)
    passed = np.concatenate(([0.0], np.cumsum(np.where(running > 0, share, 0.0))))
    # No time passes between two equal times, so it does not matter which of them is found.
    start, end = (passed[np.searchsorted(times, edge)] for edge in (comm.start_ns, comm.end_ns))
    shared: Int64Column = np.rint(end - start).astype(np.int64)
    return shared
