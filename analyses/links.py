"""How long gradients take on a link, by arithmetic: for studies to hold measurements against."""

from __future__ import annotations

from typing import Any

TCP_PAYLOAD = 1448 / 1514
"""Share of an Ethernet frame of 1500 bytes and its header that is left for the data of TCP with timestamps."""


def transfer_ns(num_bytes: int, gbit_per_s: float) -> float:
    """Return the time of an all-reduce of two ranks, which sends as many bytes as it reduces, both ways at once."""
    return num_bytes / (gbit_per_s / 8 * TCP_PAYLOAD)


def left_by_queue_ns(buckets: Any, gbit_per_s: float) -> float:
    """Return the time left to send after the last gradient, if each bucket waits for its gradients and for the link."""
    free_at = 0.0
    for bucket in buckets:
        free_at = max(free_at, bucket.ready_ns) + transfer_ns(bucket.num_bytes, gbit_per_s)
    return free_at - max(bucket.ready_ns for bucket in buckets)
