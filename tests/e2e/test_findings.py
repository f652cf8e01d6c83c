"""Mistakes that DDP users make are found in real training, and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from jobs import Run, on_ranks, script

LONG = pytest.mark.long
Report = Callable[[str], dict[str, Any]]


def findings(mistake: str, ddpprof: Run, report: Report) -> dict[str, dict[str, Any]]:
    options = ["--out", "run", "--quiet"]
    ddpprof("trace", *options, *on_ranks(2, *script("mistakes.py", "--mistake", mistake)))
    return {finding["rule"]: finding for finding in report("run")["findings"]}


@pytest.mark.parametrize(
    ("mistake", "rule", "says"),
    [
        pytest.param("unused", "unused-parameters", "spare.weight, spare.bias", id="unused-parameters"),
        pytest.param("unused_unsearched", "unused-parameters", "spare.weight, spare.bias", id="ddp-stops-for-them"),
        pytest.param(
            "only_the_body",
            "untrained-parameters",
            "no optimizer has them: norm.weight, norm.bias, spare.weight",
            id="no-optimizer-has-them",
        ),
        pytest.param(
            "no_rate",
            "untrained-parameters",
            "their learning rate is 0: norm.weight, norm.bias, spare.weight",
            id="no-learning-rate",
            marks=LONG,
        ),
        pytest.param(
            "forward_for_metrics",
            "unused-forwards",
            "1 of 2 forward passes of Model per step",
            id="metrics",
        ),
        pytest.param("teacher", "untrained-parameters", "of Model outside DDP get", id="a-teacher", marks=LONG),
        pytest.param("double", "double-precision", "torch.float64", id="double-precision", marks=LONG),
        pytest.param("same_seed", "same-random-numbers", "Both ranks draw", id="same-seed", marks=LONG),
        pytest.param("no_sampler", "same-samples", "RandomSampler draws them", id="no-sampler", marks=LONG),
        pytest.param("same_checkpoint", "same-checkpoint", "checkpoint.pt", id="same-checkpoint", marks=LONG),
        pytest.param("slow_data", "idle-for-data", "in __getitem__", id="slow-data", marks=LONG),
    ],
)
def test_a_mistake_is_found(mistake: str, rule: str, says: str, ddpprof: Run, report: Report) -> None:
    finding = findings(mistake, ddpprof, report)[rule]
    assert says in finding["title"] + finding["evidence"] + finding["advice"]


def test_the_line_of_the_script_that_takes_time_is_named(ddpprof: Run, report: Report) -> None:
    found = findings("slow_log", ddpprof, report)["script-code"]
    assert found["title"].endswith("in write_log")
    assert "mistakes.py:" in found["title"]
    assert found["gain_ns"] == pytest.approx(30e6, abs=3e6)


@pytest.mark.long
def test_a_hook_that_takes_time_is_named(ddpprof: Run, report: Report) -> None:
    found = findings("slow_hook", ddpprof, report)["code-in-backward"]
    assert found["title"].endswith("in write_log")
    assert found["gain_ns"] == pytest.approx(30e6, abs=3e6)


@pytest.mark.long
def test_work_outside_the_passes_is_named(ddpprof: Run, report: Report) -> None:
    """Each weight is averaged by its own operators, which leave no long gaps between them."""
    found = findings("weights_averaged", ddpprof, report)
    outside = found["code-outside-passes"]
    assert "mostly at mistakes.py:67 in average_weights (" in outside["title"]
    in_gaps = found.get("script-code", {"gain_ns": 0})  # other work on the cores makes some gaps long
    assert 4 * in_gaps["gain_ns"] < outside["gain_ns"]


@pytest.mark.long
def test_ranks_that_take_turns_at_being_late(ddpprof: Run, report: Report) -> None:
    """In each step, one of the two ranks works 30 ms longer, which is 15 ms more than the mean."""
    found = findings("take_turns", ddpprof, report)
    assert found["uneven-work"]["gain_ns"] == pytest.approx(15e6, abs=4e6)
    assert not {"straggler", "script-code"} & found.keys()


@pytest.mark.long
def test_evaluations_that_take_much_of_the_run_are_found(ddpprof: Run, report: Report) -> None:
    found = findings("evaluates_often", ddpprof, report)["long-steps"]
    assert found["title"].startswith("Evaluation on rank 0, for which the other ranks wait, takes")
    assert found["numbers"]["extra_ns"] / found["numbers"]["num_steps"] == pytest.approx(100e6, abs=20e6)


@pytest.mark.long
def test_the_line_for_which_the_others_wait_is_named(ddpprof: Run, report: Report) -> None:
    found = findings("slow_log_of_a_rank", ddpprof, report)
    named = re.search(r"mistakes.py:\d+ in write_log takes ([\d.]+) ms more per step", found["straggler"]["evidence"])
    assert named is not None
    assert float(named[1]) == pytest.approx(30, abs=3)
    assert "script-code" not in found


@pytest.mark.long
def test_a_loss_that_is_not_a_number_is_told_and_reported(ddpprof: Run, report: Report) -> None:
    where = "first in step 14 on rank 1"
    evidence = "the other rank followed in step 15, after DDP had averaged the gradients"
    watched = ddpprof("watch", "--out", "run", *on_ranks(2, *script("mistakes.py", "--mistake", "bad_batch")))
    # whether it is told during the run or after it
    assert f"{where}: {evidence}. Check the batch of rank 1 in step 14" in watched.stderr
    (finding,) = (one for one in report("run")["findings"] if one["rule"] == "nonfinite-loss")
    assert (finding["title"], finding["evidence"]) == (f"The loss was NaN or infinite in 16 steps, {where}", evidence)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("find_unused_for_nothing", "find-unused-for-nothing"),
        pytest.param("no_set_epoch", "set-epoch-never-called", marks=LONG),
        ("small_buckets", "buckets-too-small"),
        ("anomaly", "debugging-setting"),
    ],
)
def test_more_mistakes_are_found(mistake: str, rule: str, ddpprof: Run, report: Report) -> None:
    assert rule in findings(mistake, ddpprof, report)


@pytest.mark.long
@pytest.mark.parametrize("mistake", ["branches_take_turns", "branch_by_rank"])
def test_the_search_is_needed_where_branches_take_turns(mistake: str, ddpprof: Run, report: Report) -> None:
    """Each branch is used in some pass or on some rank, and without the search this training fails."""
    assert not {"find-unused-for-nothing", "unused-parameters"} & set(findings(mistake, ddpprof, report))


def test_sound_training_is_accused_of_nothing(ddpprof: Run, report: Report) -> None:
    accusations = {
        "find-unused-for-nothing",
        "unused-parameters",
        "same-samples",
        "same-random-numbers",
        "set-epoch-never-called",
        "same-checkpoint",
        "buckets-too-small",
        "script-code",
        "code-in-backward",
        "code-outside-passes",
        "debugging-setting",
        "gradients-discarded",
        "uneven-work",
        "untrained-parameters",
        "unused-forwards",
        "double-precision",
        "growing-steps",
        "optimizer-not-fused",
    }
    assert not accusations & findings("none", ddpprof, report).keys()
