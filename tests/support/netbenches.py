"""Files of `ddpprof netbench`, made by hand."""

from __future__ import annotations

from typing import Any


def netbench(**changes: Any) -> dict[str, Any]:
    """Four ranks on two hosts, two sizes: 1 MB in 1 ms, 4 MB in 2 ms; of 4 MB two at once in 3 ms."""
    return {
        "format": 1,
        "ddpprof": "0.1.0",
        "torch": "2.13.0",
        "created_unix_s": 1.5,
        "collective": "all_reduce",
        "dtype": "float32",
        "backend": "gloo",
        "device": "cpu",
        "world_size": 4,
        "hosts": ["a", "a", "b", "b"],
        "sizes": [
            {
                "num_bytes": 1_000_000,
                "longest_ns": [900_000, 1_000_000, 7_000_000],
                "shortest_ns": [800_000, 900_000, 6_000_000],
                "cpu_ns": [100_000, 200_000, 400_000, 900_000],
            },
            {"num_bytes": 4_000_000, "longest_ns": [2_000_000], "shortest_ns": [1_900_000], "cpu_ns": [0, 1, 2, 3]},
        ],
        "concurrent": [
            {"num_bytes": 4_000_000, "both_ns": [3_000_000], "alone_ns": [2_000_000], "cpu_ns": [0, 1, 2, 3]}
        ],
        "left_out": [],
        **changes,
    }
