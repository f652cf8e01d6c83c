"""Going on with an experiment: whose it is, who works on it, and what a killed one left running."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from experiments import PLAN, plan_of_another_user, planned

from ddpprof.cli import main
from ddpprof.errors import CannotRecord, RunExists
from ddpprof.experiments.conduct import open_experiment, working_on
from ddpprof.experiments.plan import ExperimentKind, Variant, is_of_this_user, read_plan, write_plan
from ddpprof.experiments.vary import vary


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return plan_of_another_user(tmp_path, monkeypatch)


def test_an_experiment_of_another_user_is_shown_and_not_run(
    theirs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--resume", str(theirs)]) == 2
    said = capfd.readouterr().err
    assert not (tmp_path / "it-ran").exists()
    assert f"touch {tmp_path / 'it-ran'}" in said
    assert "LD_PRELOAD=theirs.so" in said
    assert "--trust" in said


def test_a_plan_that_somebody_changed_is_no_longer_this_users(tmp_path: Path) -> None:
    write_plan(tmp_path, PLAN)
    assert is_of_this_user(tmp_path, PLAN)
    assert not is_of_this_user(tmp_path, replace(PLAN, command=("other.py",)))


def test_secrets_of_a_command_are_not_kept_and_it_is_gone_on_with_when_given_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("train.py", "--api-key", "S1", "--key={of-key}")
    choices = ("--token=S2", "--passphrase=of S3 words", "HF_TOKEN=S4", "of-key=S5 words", "MODE=plain")
    [variant] = vary(Variant(1), choices, command)
    given = replace(planned(ExperimentKind.SWEEP, variant, rounds=1), command=command)
    open_experiment(tmp_path, given, force=False)
    kept = (tmp_path / "experiment.json").read_text()
    assert not any(f"S{number}" in kept for number in range(1, 6))
    assert "plain" in kept
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert f"ddpprof sweep --out {tmp_path}" in capfd.readouterr().err
    open_experiment(tmp_path, given, force=False)
    with pytest.raises(RunExists, match="another experiment"):
        open_experiment(tmp_path, replace(given, rounds=2), force=False)


def test_the_same_experiment_of_another_user_is_not_gone_on_with(theirs: Path, tmp_path: Path) -> None:
    same = read_plan(theirs)
    with pytest.raises(RunExists, match="another user"):
        open_experiment(theirs, same, force=False)


def test_one_process_at_a_time_works_on_an_experiment(tmp_path: Path) -> None:
    refused = pytest.raises(CannotRecord, match=f"process {os.getpid()} on ")
    with working_on(tmp_path), refused, working_on(tmp_path):
        pytest.fail("two of them")
    with working_on(tmp_path):
        pass
