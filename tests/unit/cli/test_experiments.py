"""The words of ``ddpprof overhead``, ``scale`` and ``sweep``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
from experiments import PLAN
from reports import report

from ddpprof.cli import main
from ddpprof.cli.commands import parsers
from ddpprof.cli.experiments import plan
from ddpprof.cli.job import split_experiment
from ddpprof.cli.trying import _as_it_is
from ddpprof.errors import DdpprofError
from ddpprof.experiments.plan import Experiment, ExperimentKind, read_plan, write_plan


def experiment_parser(kind: str) -> argparse.ArgumentParser:
    return parsers({kind})[1][kind]


@pytest.mark.parametrize(
    ("arguments", "own", "command", "is_wrapped"),
    [
        pytest.param("train.py --lr 1", "", "train.py --lr 1", False, id="only-the-script"),
        pytest.param("--rounds 2 train.py --rounds 9", "--rounds=2", "train.py --rounds 9", False, id="same-name"),
        pytest.param("train.py --nproc 1,2 --lr 1", "--nproc=1,2", "train.py --lr 1", False, id="behind-the-script"),
        pytest.param("train.py --nproc=1,2 x", "--nproc=1,2", "train.py x", False, id="joined"),
        pytest.param("--vary --batch=1,2 train.py", "--vary=--batch=1,2", "train.py", False, id="value-like-an-option"),
        pytest.param("-m pkg.train x", "-m", "pkg.train x", False, id="module"),
        pytest.param("train.py -- --nproc 3", "", "train.py --nproc 3", False, id="the-scripts-own"),
        pytest.param("--nproc 2 -- mpirun -n 2 --nproc x", "--nproc=2", "mpirun -n 2 --nproc x", True, id="wrapped"),
        pytest.param("--resume runs/a", "--resume=runs/a", "", False, id="no-script"),
        pytest.param("--vary", "--vary", "", False, id="without-its-value"),
    ],
)
def test_where_an_experiments_command_begins(arguments: str, own: str, command: str, is_wrapped: bool) -> None:
    found = split_experiment(arguments.split(), experiment_parser("sweep"))
    assert found == (own.split(), command.split(), is_wrapped)


@pytest.mark.parametrize(
    ("kind", "arguments", "titles"),
    [
        pytest.param("overhead", [], ["with DDP"], id="overhead"),
        pytest.param("overhead", ["--apart"], ["with DDP", "without DDP"], id="apart"),
        pytest.param("overhead", ["--nproc=2"], ["2 processes"], id="overhead-of-two"),
        pytest.param("sweep", ["--vary=--b=1,2"], ["--b=1", "--b=2"], id="as-many-as-the-script-starts"),
        pytest.param("scale", [], ["without DDP, 1 process", "1 process", "2 processes"], id="weak"),
        pytest.param(
            "scale",
            ["--no-weak", "--nproc=4", "--strong=--b=8"],
            ["--b=8 in total, without DDP, 1 process", "--b=8 in total, 4 processes"],
            id="strong",
        ),
        pytest.param(
            "sweep",
            ["--nproc=1,2", "--vary=--b=1,2"],
            ["--b=1, 1 process", "--b=1, 2 processes", "--b=2, 1 process", "--b=2, 2 processes"],
            id="sweep",
        ),
    ],
)
def test_what_an_experiment_runs(kind: str, arguments: list[str], titles: list[str]) -> None:
    planned = plan(experiment_parser(kind).parse_args(arguments), ["train.py"], is_wrapped=False)
    assert [variant.title for variant in planned.variants] == titles


@pytest.mark.parametrize(
    ("arguments", "is_share", "is_work"),
    [
        pytest.param(["--vary=--batch-size=1,2"], True, True, id="batch"),
        pytest.param(["--vary=--batch-size=1,2", "--size-is=total"], False, True, id="batch-of-all"),
        pytest.param(["--vary=bucket_cap_mb=1,2"], False, False, id="no-work"),
        pytest.param(["--vary=--samples=1,2", "--size-is=share"], True, True, id="as-said"),
    ],
)
def test_whether_sizes_count_work(arguments: list[str], is_share: bool, is_work: bool) -> None:
    planned = plan(experiment_parser("sweep").parse_args(arguments), ["train.py"], is_wrapped=False)
    assert {(variant.is_share, variant.is_work) for variant in planned.variants} == {(is_share, is_work)}


def test_one_that_is_stopped_before_there_is_anything_to_show_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpprof.cli.experiments.run_trials", lambda *_: True)
    assert main(["overhead", "--out", str(tmp_path / "o"), "-m", "ddpprof.demo.train_convnet"]) == 130
    said = capsys.readouterr().out
    assert "no results to compare yet" in said
    assert said.rstrip().endswith(f"Stopped. Continue with: ddpprof overhead --resume {tmp_path / 'o'}")


def test_a_table_of_times_gives_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("batch,one,two\n" + "".join(f"{n},{10 + 3 * n},{50 + n}\n" for n in (4, 8, 16, 32)))
    assert main(["report", str(tmp_path / "t.csv")]) == 0
    assert "Above batch 20" in capsys.readouterr().out


def test_a_table_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "t.csv")]) == 2
    assert capsys.readouterr().err == f"ddpprof: {tmp_path / 't.csv'} cannot be read: No such file or directory.\n"


def test_an_experiment_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "experiment.json").touch()
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "trial-0-0" in capsys.readouterr().err


def test_a_tuning_is_resumed_by_its_own_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(tmp_path, replace(PLAN, kind=ExperimentKind.TUNE))
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"ddpprof: {tmp_path} was created by ddpprof tune. Continue it with: ddpprof tune --resume {tmp_path}\n"
    )
    assert main(["try", "--resume", str(tmp_path)]) == 2  # not a mistake in the words, as it once was
    assert "Continue it with: ddpprof tune --resume" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.json"]


def test_a_resumed_try_may_be_given_more_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[Experiment] = []
    monkeypatch.setattr("ddpprof.cli.trying.run_trials", lambda _, experiment: bool(run.append(experiment)) or True)
    write_plan(tmp_path, replace(PLAN, kind=ExperimentKind.TRY, rounds=10, enough_rounds=5))
    assert main(["try", "--resume", str(tmp_path), "--rounds", "12"]) == 130
    assert f"Stopped. Continue with: ddpprof try --resume {tmp_path}" in capsys.readouterr().out
    assert [(one.rounds, one.enough_rounds) for one in run] == [(12, None)]
    assert read_plan(tmp_path).rounds == 12
    assert main(["try", "--resume", str(tmp_path), "--timed-steps", "12"]) == 2
    assert "all options from the experiment" in capsys.readouterr().err


@pytest.mark.parametrize("num_launches", [0, 2])
def test_a_job_that_was_started_on_several_hosts_is_not_tried_on_one(num_launches: int) -> None:
    """It may have been started on each host by hand, without an option that tells."""
    options = argparse.Namespace(path=Path("a"), trust=True)
    job = replace(report().job, recorded_with=("train.py",), hosts=("a", "b"), num_launches=num_launches)
    with pytest.raises(DdpprofError, match="the job was started on several nodes, but ddpprof try can start it only"):
        _as_it_is(options, report(job=job))
    assert replace(job, num_launches=1).one_command_starts_it
