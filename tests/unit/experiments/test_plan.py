"""The plan of an experiment, on disk and off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from experiments import PLAN
from msgspec import to_builtins

from ddpprof.errors import NotARun
from ddpprof.experiments.plan import (
    EXPERIMENT_FILE,
    TRIAL_FILE,
    Trial,
    TrialEnd,
    Variant,
    read_end,
    read_plan,
    write_end,
    write_plan,
)

PLAIN = to_builtins(PLAN)
"""the plan as it lies in its file"""


def test_a_plan_comes_back_as_it_went(tmp_path: Path) -> None:
    write_plan(tmp_path, PLAN)
    assert read_plan(tmp_path) == PLAN


def test_every_second_round_runs_the_variants_backwards() -> None:
    assert [(trial.variant, trial.round) for trial in PLAN.trials()] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert PLAN.num_trials == 4


def test_every_trial_has_a_folder_of_its_own() -> None:
    assert len({trial.name for trial in PLAN.trials()}) == 4


@pytest.mark.parametrize(
    ("variant", "title"),
    [
        (Variant(1), "1 process"),
        (Variant(2, "--batch=8"), "--batch=8, 2 processes"),
        (Variant(1, without_ddp=True), "without DDP, 1 process"),
    ],
)
def test_titles(variant: Variant, title: str) -> None:
    assert variant.title == title


def test_shares_add_up_over_the_processes() -> None:
    assert Variant(4, size=8.0, is_share=True).total_size == 32.0
    assert Variant(4, size=8.0).total_size == 8.0
    assert Variant(4).total_size is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param(None, "is not an experiment", id="absent"),
        pytest.param("{", "was not written by ddpprof", id="cut-off"),
        pytest.param(json.dumps({"format": 1}), "was not written by ddpprof", id="without-a-plan"),
        pytest.param(json.dumps({"format": 2}), "newer version of ddpprof", id="newer"),
        pytest.param("[1]", "was not written by ddpprof", id="no-object"),
        pytest.param(json.dumps(PLAIN | {"variants": [{"nproc": 0}]}), "processes that is out of", id="no-process"),
    ],
)
def test_what_is_no_plan_is_said(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / EXPERIMENT_FILE).write_text(text)
    with pytest.raises(NotARun, match=complaint):
        read_plan(tmp_path)


def test_how_a_trial_ended_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / Trial(0, 1).name
    assert read_end(folder) is None
    folder.mkdir()
    write_end(folder, TrialEnd(1, 2.5, "exit code 1: boom"))
    assert read_end(folder) == TrialEnd(1, 2.5, "exit code 1: boom")
    (folder / TRIAL_FILE).write_text('{"exit_')
    assert read_end(folder) is None
