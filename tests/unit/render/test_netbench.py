"""The table of `ddpprof netbench`."""

from __future__ import annotations

import json
from io import StringIO

from netbenches import netbench

from ddpprof.load.netbench import parse_netbench
from ddpprof.render.sections.netbench import netbench_sections
from ddpprof.render.terminal import render_terminal


def rendered(**changes: object) -> list[str]:
    out = StringIO()
    bench = parse_netbench(json.dumps(netbench(**changes)).encode(), "x")
    render_terminal(netbench_sections(bench), out, width=120)
    return out.getvalue().splitlines()


def test_a_row_for_each_size() -> None:
    lines = rendered()
    assert lines[0] == "all-reduce · float32 · 4 ranks · 2 hosts · gloo · cpu · torch 2.13.0"
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert rows == [
        ["1,000,000", "3", "1000.0", "900.0", "7000.0", "1", "1.5", "300.0", "-"],
        ["4,000,000", "1", "2000.0", "2000.0", "2000.0", "2", "3", "0.0", "1.50"],
    ]
    assert not any(line.startswith("Left out") for line in lines)


def test_what_was_left_out() -> None:
    assert rendered(left_out=[8_000_000, 9_000_000])[-1] == (
        "Left out, because 4,000,000 bytes took so long: 8,000,000 bytes and more."
    )
    assert rendered(left_out=[8_000_000])[-1].endswith("took so long: 8,000,000 bytes.")


def test_names_of_others_are_made_printable() -> None:
    assert "\x1b" not in rendered(backend="\x1b[31m")[0]
