"""What is said of computation that communication slows."""

from dataclasses import replace
from typing import Any

import pytest
from reports import gpu_report, slowdown

from ddpprof.layout import Line, Table
from ddpprof.topics.overlap_slowdown import slowdown_section


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param(
            {"ratio": None, "lost_ns": None, "known_share": 0.0, "reason": "nothing ran alone", "kernels": ()},
            "It is unknown how much communication slows computation: nothing ran alone.",
            id="unknown",
        ),
        pytest.param(
            {"known_share": 0.01},
            "It is unknown how much communication slows computation: almost none of the computation that ran during "
            "communication also ran without communication.",
            id="next-to-nothing-is-known",
        ),
        pytest.param(
            {"known_share": 0.06},
            "Only 6% of the overlapped computation could be compared with the same kernels without "
            "communication; with communication, they took 1.12 × as long.",
            id="little-is-known",
        ),
        pytest.param(
            {"ratio": 0.97, "lost_ns": -50_000, "known_share": 0.4},
            "Communication does not noticeably slow kernels: with it, they take 0.97 × as long (measured for 40% of "
            "the 30.0 ms of overlapped computation per step).",
            id="faster",
        ),
        pytest.param({"lost_ns": 10_000}, "take 1.12 × as long: 0.01 ms lost per step", id="next-to-nothing-is-lost"),
    ],
)
def test_one_line_where_no_table_is_worth_it(changes: dict[str, Any], says: str) -> None:
    (section,) = slowdown_section(replace(slowdown(), **changes), gpu_report())
    assert isinstance(section, Line)
    assert says in section.text
    assert ("--baseline-steps 5" in section.text) is (changes.get("known_share", 1) < 0.2)


def test_a_table_of_the_kernels_that_lose_most() -> None:
    (section,) = slowdown_section(slowdown(), gpu_report())
    assert isinstance(section, Table)
    assert len(section.rows) == len(slowdown().kernels)


def test_nothing_without_communication() -> None:
    made = gpu_report()
    silent = [replace(rank, steps=tuple(replace(one, num_comm_kernels=0) for one in rank.steps)) for rank in made.ranks]
    assert [*slowdown_section(slowdown(), replace(made, ranks=tuple(silent)))] == []
