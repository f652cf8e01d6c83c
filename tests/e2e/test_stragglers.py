"""Four real ranks over gloo, of which one sleeps: who it is, in which phase, how long, behind which gradient.

Wall times do not tell: all ranks wait for the slow one, so every step is equally long on each of them. Where rank 0 is
slow before the forward, the others wait inside of theirs, for its buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Run, on_ranks, script

from ddpprof.load.run import load_run
from ddpprof.topics.collective_matching import match_collectives, rank_collectives
from ddpprof.topics.ranks.clock import find_common_clock

Report = Callable[[str], dict[str, Any]]

MS = 1_000_000
WINDOW = ["--skip-first", "2", "--cost-steps", "8", "--steps", "6"]
"""Ten steps to judge by, four of light recording and six of the profiler's."""

LONG = pytest.mark.long


def only_one(across: dict[str, Any]) -> dict[str, Any]:
    (one,) = across["stragglers"]["stragglers"]
    found: dict[str, Any] = one
    return found


@pytest.mark.parametrize(
    ("rank", "phase"),
    [
        pytest.param(1, "backward", id="backward", marks=LONG),
        pytest.param(0, "data", id="data-of-the-rank-whose-buffers-all-wait-for", marks=LONG),
        pytest.param(2, "data", id="data", marks=LONG),
        pytest.param(2, "forward", id="forward", marks=LONG),
        pytest.param(3, "optimizer", id="optimizer", marks=LONG),
        pytest.param(0, "other", id="between-the-steps", marks=LONG),
    ],
)
def test_the_rank_that_sleeps(rank: int, phase: str, ddpprof: Run, report: Report) -> None:
    options = ["--slow", str(rank), "--phase", phase, "--seconds", "0.2", "--steps", "20"]
    done = ddpprof("trace", "--quiet", "--out", "run", *WINDOW, *on_ranks(4, *script("straggler.py", *options)))
    assert done.returncode == 0, done.stderr
    shown = report("run")
    assert shown["missing"] == []
    one = only_one(shown["across"])
    assert (one["rank"], one["part"], one["num_steps"], one["since_step"]) == (rank, phase, 10, None)
    assert one["late_ns"] == pytest.approx(200 * MS, rel=0.15)
    assert one["num_last"] >= 9  # the first profiled step does not know the optimizer of the step before
    finding = shown["findings"][0]
    assert finding["rule"] == "straggler"
    if phase != "backward":
        assert finding["gain_ns"] == one["late_ns"]
    else:
        assert finding["predicted"]["gain_ns"] == pytest.approx(200 * MS, rel=0.15)
        assert finding["gain_ns"] == finding["predicted"]["high_ns"]
        (late,) = shown["across"]["late_gradients"]
        gradient = late["gradients"][0]
        assert late["rank"] == rank
        assert gradient["parameter"] in ("3.weight", "3.bias")
        assert gradient["previous_parameter"] in ("6.weight", "6.bias")
        assert gradient["jump_ns"] == pytest.approx(200 * MS, rel=0.15)


@LONG
def test_ranks_that_are_all_equally_slow_are_no_stragglers(ddpprof: Run, report: Report) -> None:
    options = ["--slow", "0", "1", "2", "3", "--phase", "forward", "--seconds", "0.2", "--steps", "20"]
    done = ddpprof("trace", "--quiet", "--out", "run", *WINDOW, *on_ranks(4, *script("straggler.py", *options)))
    assert done.returncode == 0, done.stderr
    found = report("run")["across"]["stragglers"]
    assert found["num_steps"] == 10
    assert found["stragglers"] == []


@pytest.mark.long
def test_a_rank_that_becomes_slow(ddpprof: Run, report: Report) -> None:
    options = ["--slow", "1", "--phase", "backward", "--seconds", "0.2", "--since", "8", "--steps", "20"]
    done = ddpprof("trace", "--quiet", "--out", "run", *WINDOW, *on_ranks(4, *script("straggler.py", *options)))
    assert done.returncode == 0, done.stderr
    one = only_one(report("run")["across"])
    assert (one["rank"], one["part"], one["since_step"], one["num_steps"]) == (1, "backward", 8, 7)


@pytest.mark.long
def test_ranks_of_another_group_are_not_compared(ddpprof: Run, report: Report) -> None:
    done = ddpprof("trace", "--quiet", "--out", "run", *WINDOW, *on_ranks(4, *script("two_groups.py")))
    assert done.returncode == 0, done.stderr
    shown = report("run")
    assert (shown["job"]["world_size"], shown["job"]["group_ranks"]) == (4, [0, 1])
    assert [clock["rank"] for clock in shown["across"]["clock"]["ranks"]] == [0, 1]
    num_bytes = 4 * (64 * 128 + 128 + 128 * 128 + 128 + 128 + 1)
    assert sum(bucket["num_bytes"] for bucket in shown["buckets"]) == num_bytes
    assert {one["rank"] for one in shown["across"]["stragglers"]["stragglers"]} <= {0, 1}


@pytest.mark.long
def test_the_ranks_of_one_machine_share_a_clock(tmp_path: Path, ddpprof: Run) -> None:
    done = ddpprof("trace", "--quiet", "--out", "run", *WINDOW, *on_ranks(4, *script("straggler.py", "--steps", "20")))
    assert done.returncode == 0, done.stderr
    ranks = [one for rank in load_run(tmp_path / "run").ranks if (one := rank_collectives(rank)) is not None]
    matched = match_collectives(ranks)
    assert (len(matched), matched.mismatches) == (24, ())  # two broadcasts and two all-reduces in each of six steps
    clock = find_common_clock(ranks, matched)
    assert clock is not None
    assert [one.rank for one in clock.ranks] == [0, 1, 2, 3]
    assert all(one.bound_ns is not None and abs(one.offset_ns) <= one.bound_ns for one in clock.ranks)
