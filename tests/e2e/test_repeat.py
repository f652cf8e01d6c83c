"""One job recorded several times, and what a comparison of such runs says."""

import json
from pathlib import Path

import pytest
from jobs import Run, on_ranks, script

OPTIONS = ["--no-profiler", "--skip-first", "2", "--cost-steps", "0", "--steps", "8"]


@pytest.mark.long
def test_a_job_is_recorded_several_times_and_more_runs_are_added(ddpprof: Run, tmp_path: Path) -> None:
    command = [*OPTIONS, *on_ranks(2, *script("torchrun_plain.py"))]
    done = ddpprof("trace", "--repeat", "2", "--out", "runs/a", *command)
    assert done.returncode == 0, done.stderr
    assert "Wrote runs/a (2 runs). View them with: ddpprof report runs/a" in done.stderr
    assert sorted(path.name for path in (tmp_path / "runs/a").iterdir()) == ["run-1", "run-2"]
    asked = ddpprof("compare", "runs/a/run-1", "--", "runs/a", "--fail-on", "step>5%")
    assert asked.returncode == 3, asked.stderr
    (to_add,) = [line.strip() for line in asked.stdout.splitlines() if "--out runs/a " in " ".join(line.split())]
    assert to_add.startswith("ddpprof trace --repeat 4 --out runs/a --no-profiler")

    done = ddpprof("trace", "--repeat", "1", "--out", "runs/a", *command)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "runs/a").iterdir()) == ["run-1", "run-2", "run-3"]
    shown = json.loads(ddpprof("report", "runs/a", "--format", "json").stdout)
    assert [(run["name"], run["num_steps"]) for run in shown["runs"]] == [("run-1", 8), ("run-2", 8), ("run-3", 8)]
    assert shown["missing"] == []


@pytest.mark.long
def test_a_run_that_fails_ends_the_repetition_with_its_exit_code(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(5)\n")
    done = ddpprof("trace", "--repeat", "3", "--out", "runs/a", "fails.py")
    assert done.returncode == 5
    assert "has been recorded" not in done.stderr


def test_a_run_is_not_a_folder_of_runs(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "train.py").write_text("")
    done = ddpprof("trace", "--repeat", "3", "--out", "run", "train.py")
    assert done.returncode == 2
    assert "run is itself a run. Choose another folder for repeated runs: --out runs" in done.stderr
