"""Torch's flight recorder tells which collectives a step called, and from where."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch

from ddpprof.record.flight_recorder import (
    GlooCollective,
    all_reduces_since,
    collectives_of_gloo,
    place_of,
    unusual_collective,
)

REDUCE, BUFFERS, BROADCAST = ("all_reduce", 100), ("broadcast", 80), ("broadcast", 5)
STARTS_NS = [100 * step for step in range(1, 9)]


def noted(*steps: list[tuple[str, int]], first_ns: int = 100) -> list[GlooCollective]:
    """Return collectives of steps that begin 100 ns apart."""
    return [
        GlooCollective(first_ns + 100 * step + index, *kind)
        for step, kinds in enumerate(steps)
        for index, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        pytest.param([BUFFERS, REDUCE, REDUCE], None, id="as-always"),
        pytest.param([BROADCAST, BUFFERS], BROADCAST, id="another-one"),
        pytest.param([BUFFERS, ("broadcast", 79)], ("broadcast", 79), id="another-size"),
        pytest.param([BUFFERS, BUFFERS], BUFFERS, id="more-often"),
        pytest.param([BUFFERS, ("all_gather", 8), *[REDUCE] * 4], None, id="what-others-are-waited-for"),
        pytest.param([], None, id="fewer"),
    ],
)
def test_a_collective_that_no_step_before_had_so_often_is_unusual(
    last: list[tuple[str, int]], expected: tuple[str, int] | None
) -> None:
    found = unusual_collective(noted(*[[BUFFERS, REDUCE, REDUCE]] * 7, last), STARTS_NS)
    assert (None if found is None else (found.name, found.numel)) == expected


def test_nothing_is_unusual_after_few_steps_or_before_the_first() -> None:
    assert unusual_collective(noted(*[[REDUCE]] * 4, [BROADCAST]), STARTS_NS[:5]) is None
    assert unusual_collective(noted([BROADCAST], *[[REDUCE]] * 8, first_ns=0), STARTS_NS) is None
    assert unusual_collective([], STARTS_NS) is None


def test_torch_is_asked_for_its_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[dict[str, Any]] = [
        {"profiling_name": "gloo:broadcast", "input_sizes": [[5]], "time_created_ns": 10},
        {"profiling_name": "gloo:all_reduce", "input_sizes": [[5, 4]], "time_created_ns": 20},
        {"profiling_name": "gloo:allreduce", "input_sizes": [], "time_created_ns": 30},
        {"profiling_name": "without a time"},
    ]
    c10d = torch._C._distributed_c10d
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda *_: b"[]", raising=False)
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", lambda *_: json.dumps({"entries": entries}), raising=False)
    reduced = (GlooCollective(20, "all_reduce", 20), GlooCollective(30, "allreduce", 0))
    assert collectives_of_gloo() == (GlooCollective(10, "broadcast", 5), *reduced)
    assert all_reduces_since(15) == reduced
    assert all_reduces_since(21) == reduced[1:]
    nccl = {"entries": [{"profiling_name": "nccl:all_reduce", "input_sizes": [[7]], "time_created_ns": 40}]}
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda *_: json.dumps(nccl), raising=False)
    assert all_reduces_since(21) == (GlooCollective(40, "all_reduce", 7),)


def test_the_line_that_called_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    library = {"filename": "/lib/python3.11/site-packages/torch/distributed/c10d.py", "line": 3, "name": "broadcast"}
    mine, main = (
        {"filename": "/home/me/train.py", "line": line, "name": name} for line, name in ((9, "f"), (20, "main"))
    )
    entries = [{"time_created_ns": 10, "frames": [library, mine, main]}, {"time_created_ns": 20, "frames": [library]}]
    c10d = torch._C._distributed_c10d
    monkeypatch.setattr(c10d, "_dump_fr_trace", lambda *_: pickle.dumps({"entries": entries}), raising=False)
    assert place_of(GlooCollective(10, "broadcast", 5)) == "/home/me/train.py:9 in f"
    assert place_of(GlooCollective(20, "broadcast", 5)) is None
    assert place_of(GlooCollective(30, "broadcast", 5)) is None
    monkeypatch.delattr(c10d, "_dump_fr_trace")
    assert place_of(GlooCollective(10, "broadcast", 5)) is None
