"""Collectives beside DDP in real training: recognised, counted, sized, and none invented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import QUICK, Run, on_ranks, script

Row = tuple[str, str, str, int, int | None]
MODEL_BYTES = 4 * (64 * 256 + 256 + 256 + 256 + 256 + 1)

AVERAGED = ("parameters", "after the optimizer", "all_reduce", 6)
METRIC = ("between backward and optimizer", "all_reduce", 1)
BARRIER: Row = ("barrier", "after the optimizer", "barrier", 1, None)


@pytest.fixture
def beside(ddpprof: Run, report: Callable[[str], dict[str, Any]]) -> Callable[..., set[Row]]:
    """What the report knows of the collectives beside DDP when the script runs with these options."""

    def run(*options: str, record: tuple[str, ...] = ()) -> set[Row]:
        job = on_ranks(2, *script("extra_collectives.py", *options))
        done = ddpprof("trace", "--quiet", "--out", "run", *QUICK, *record, *job)
        assert done.returncode == 0, done.stderr
        rows = report("run")["outside"]
        assert all(0 <= row["exposed_ns"] <= row["time_ns"] for row in rows)
        return {(r["purpose"], r["place"], r["kind"], r["num_calls"], r["num_bytes"]) for r in rows}

    return run


@pytest.mark.long
def test_all_of_them_with_their_sizes(beside: Callable[..., set[Row]]) -> None:
    found = beside("--average", "--metric", "--barrier", record=("--record-shapes",))
    assert found == {(*AVERAGED, MODEL_BYTES), ("few numbers", *METRIC, 4), BARRIER}


@pytest.mark.long
def test_without_shapes_they_are_told_by_their_number(beside: Callable[..., set[Row]]) -> None:
    assert beside("--average", "--metric", "--barrier") == {(*AVERAGED, None), ("other", *METRIC, None), BARRIER}


@pytest.mark.long
def test_an_optimizer_that_shares_its_work_broadcasts(beside: Callable[..., set[Row]]) -> None:
    assert beside("--zero") == {("other", "optimizer", "broadcast", 6, None)}


@pytest.mark.long
def test_ddps_own_are_not_among_them(beside: Callable[..., set[Row]]) -> None:
    assert beside() == set()


@pytest.mark.long
@pytest.mark.parametrize("variant", ["join", "powersgd_hook", "no_sync"])
def test_nor_are_those_of_its_other_ways(variant: str, ddpprof: Run, report: Callable[[str], dict[str, Any]]) -> None:
    done = ddpprof(
        "trace", "--quiet", "--out", "run", *QUICK, *on_ranks(2, *script("variants.py", "--variant", variant))
    )
    assert done.returncode == 0, done.stderr
    assert report("run")["outside"] == []
