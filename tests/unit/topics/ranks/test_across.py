"""What is said of late ranks and of waiting, for reports made by hand."""

from dataclasses import replace

import pytest
from reports import across

from ddpprof.layout import Line, Table
from ddpprof.topics.collectives import collective_table
from ddpprof.topics.ranks.across import straggler_table, waiting_table

NOBODY = across(stragglers=replace(found, stragglers=()) if (found := across().stragglers) else None, late_gradients=())
BUT = (
    ", although rank 1 arrives last in 5 of 6 collectives and other ranks wait up to 11.0 ms per step: its own work "
    "takes longer, but there are too few steps to rule out chance. Record more steps (--steps 20)."
)


@pytest.mark.parametrize(("num_last", "says"), [(3, "."), (5, BUT)])
def test_without_a_straggler_it_says_so(num_last: int, says: str) -> None:
    waiting = tuple(replace(one, num_last=min(num_last, one.num_last or 0)) for one in NOBODY.waiting)
    (line,) = straggler_table(replace(NOBODY, waiting=waiting))
    assert isinstance(line, Line)
    assert (
        line.text
        == f"The 9 recorded steps do not show that any rank is significantly slower than the other ranks{says}"
    )


def test_of_many_ranks_those_are_shown_for_which_the_others_wait() -> None:
    waiting = tuple(replace(across().waiting[0], rank=n, waiting_per_step_ns=(20 - n) * 1_000_000) for n in range(20))
    table, *_ = waiting_table(across(waiting=waiting))
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows[:2]] == ["19", "18"]
    assert "4 more ranks are in the JSON report" in table.note


def test_of_one_rank_there_is_no_bandwidth_and_it_says_why() -> None:
    alone = [
        replace(row, num_ranks_read=1, algbw_bytes_per_s=None, busbw_bytes_per_s=None) for row in across().collectives
    ]
    (table,) = collective_table(alone)
    assert isinstance(table, Table)
    assert "calls could not be matched between ranks, so transfer includes waiting, and no bandwidth is" in table.note
