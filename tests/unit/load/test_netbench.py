"""Files of `ddpprof netbench`: what is in them, and what is no such file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from netbenches import netbench

from ddpprof.errors import BadTrace
from ddpprof.load.record import load_netbench
from ddpprof.model.json_files import NETBENCH_FORMAT, CollectiveTimes, ConcurrentTimes


def times(**changes: Any) -> dict[str, Any]:
    return {**netbench()["sizes"][1], **changes}


def test_a_file_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    path.write_text(json.dumps(netbench(left_out=[8, 16], of_a_later_version=1)))
    bench = load_netbench(path)
    assert (bench.format, bench.collective, bench.backend, bench.world_size) == (1, "all_reduce", "gloo", 4)
    assert bench.hosts == ("a", "a", "b", "b")
    assert bench.sizes[1] == CollectiveTimes(4_000_000, (2_000_000,), (1_900_000,), (0, 1, 2, 3))
    assert bench.concurrent == (ConcurrentTimes(4_000_000, (3_000_000,), (2_000_000,), (0, 1, 2, 3)),)
    assert bench.left_out == (8, 16)
    assert bench.beside == (), "an older file has none"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(netbench(format=NETBENCH_FORMAT + 1), "written by a newer version of ddpprof", id="newer"),
        pytest.param({"traceEvents": []}, "missing required field `format`", id="a-trace"),
        pytest.param([1], "Expected `object`", id="a-list"),
        pytest.param(netbench(collective="barrier"), "its collective is 'barrier'", id="collective"),
        pytest.param(netbench(world_size=3), "its world size is 3, and its number of host names is 4", id="hosts"),
        pytest.param(
            netbench(world_size=1, hosts=["a"]), "its world size is 1, and its number of host names is 1", id="alone"
        ),
        pytest.param(netbench(sizes=[]), "no size was measured", id="nothing"),
        pytest.param(netbench(sizes=[times(), times()]), "are not in ascending order", id="twice-the-same"),
        pytest.param(netbench(sizes=[times(num_bytes=0)]), "are not in ascending order", id="no-bytes"),
        pytest.param(
            netbench(sizes=[times(longest_ns=[])]),
            "times for 4000000 bytes lack iterations or ranks",
            id="no-iteration",
        ),
        pytest.param(netbench(sizes=[times(shortest_ns=[1, 2])]), "lack iterations or ranks", id="one-more"),
        pytest.param(netbench(sizes=[times(cpu_ns=[1])]), "lack iterations or ranks", id="a-rank-less"),
        pytest.param(netbench(sizes=[times(longest_ns=[0])]), "a time for 4000000 bytes is invalid", id="no-time"),
        pytest.param(netbench(sizes=[times(longest_ns=[1 << 63])]), "is invalid", id="centuries"),
        pytest.param(
            netbench(beside=[{"num_bytes": 8, "taken_ns": [1], "lasted_ns": []}]),
            "for 8 bytes lack rounds",
            id="odd",
        ),
        pytest.param(
            netbench(beside=[{"num_bytes": 8, "taken_ns": [-1], "lasted_ns": [1]}]),
            "a time for 8 bytes is invalid",
            id="gains",
        ),
        pytest.param(netbench(sizes=[times(longest_ns=[0.5])]), "Expected `int`", id="half-a-nanosecond"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, content: object, complaint: str) -> None:
    path = tmp_path / "network.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadTrace) as raised:
        load_netbench(path)
    assert complaint in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(json.dumps(netbench()).encode()[:-9], "truncated", id="cut-off"),
        pytest.param(b"\x1f\x8b\x08", "malformed", id="binary"),
    ],
)
def test_what_is_no_json(tmp_path: Path, text: bytes, complaint: str) -> None:
    path = tmp_path / "network.json"
    path.write_bytes(text)
    with pytest.raises(BadTrace, match=complaint):
        load_netbench(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="cannot be read: No such file"):
        load_netbench(tmp_path / "network.json")
