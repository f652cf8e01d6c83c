"""The table of `ddpprof netbench`."""

from __future__ import annotations

import json
from io import StringIO

from netbenches import netbench

from ddpprof.load.record import parse_netbench
from ddpprof.render.sections.whatif import netbench_sections
from ddpprof.render.terminal import render_terminal


def rendered(width: int = 120, **changes: object) -> list[str]:
    out = StringIO()
    bench = parse_netbench(json.dumps(netbench(**changes)).encode(), "x")
    render_terminal(netbench_sections(bench), out, width)
    return out.getvalue().splitlines()


def test_a_row_for_each_size() -> None:
    lines = rendered()
    assert lines[0] == "all-reduce · float32 · 4 ranks · 2 hosts · gloo · cpu · torch 2.13.0"
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert rows == [
        ["1000000", "3", "1000", "900.0", "7000", "1", "1.5", "300.0", "-"],
        ["4000000", "1", "2000", "2000", "2000", "2", "3", "0.0", "1.50"],
    ]
    assert not any(line.startswith("Left out") for line in lines)


def test_what_collectives_take_of_a_computation() -> None:
    beside = [{"num_bytes": 1_000_000, "taken_ns": [0, 3_000_000, 2_500_000], "lasted_ns": [9_000_000] * 3}]
    lines = rendered(beside=beside)
    assert "During computation" in lines
    row = lines[lines.index("During computation") + 3]
    assert row.split() == ["1000000", "9000", "2500", "2.50"]
    assert "During computation" not in rendered()


def test_the_largest_numbers_fit_into_80_columns() -> None:
    times = {"longest_ns": [9_999_999_999] * 200, "shortest_ns": [1] * 200, "cpu_ns": [888_888_888] * 4}
    pair = {"both_ns": [39_999_999_999], "alone_ns": [2_000_000_000], "cpu_ns": [1] * 4}
    lines = rendered(80, sizes=[{"num_bytes": 1 << 28, **times}], concurrent=[{"num_bytes": 1 << 28, **pair}])
    (row,) = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert row == ["268435456", "200", *["10000000"] * 3, "0.0268", "0.0403", "888889", "20.00"]
    assert max(map(len, lines)) <= 80


def test_hosts_with_other_work() -> None:
    assert not any("other work uses" in line for line in rendered())
    disturbed = {**netbench()["sizes"][0], "longest_ns": [400_000, 1_000_000, 7_000_000]}
    assert sum("other work uses" in line for line in rendered(sizes=[disturbed])) == 1


def test_what_was_left_out() -> None:
    assert rendered(left_out=[8_000_000, 9_000_000])[-1] == (
        "Left out because 4000000 bytes took too long: 8000000 bytes and more."
    )
    assert rendered(left_out=[8_000_000])[-1].endswith("took too long: 8000000 bytes.")


def test_names_of_others_are_made_printable() -> None:
    assert "\x1b" not in rendered(backend="\x1b[31m")[0]
