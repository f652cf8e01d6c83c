"""`ddpprof doctor` finds a machine and an installation well, and faults that are planted in them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, Run, environment
from processes import children, started, wait_until

from ddpprof.doctor import NAMES

pytestmark = pytest.mark.e2e

FAULTS_FOLDER = Path(__file__).parent.parent / "faults"
OF_GPUS = ("other-profilers", "synchronizing-calls", "foreign-contexts")


def examined(folder: Path, faults: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*DDPPROF, "doctor", *options],
        cwd=folder,
        env=environment(PYTHONPATH=str(FAULTS_FOLDER), DDPPROF_TEST_FAULTS=faults),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stderr == ""
    outcomes = json.loads((folder / "doctor.json").read_text())["outcomes"]
    return done.returncode, {one["name"]: one for one in outcomes}


@pytest.mark.parametrize(
    ("fault", "questions"),
    [
        pytest.param("changed_training", "parameters,collectives,export-pause", id="training"),
        pytest.param("no_backends,blind_profiler", "backends,profiler", id="torch", marks=pytest.mark.long),
    ],
)
def test_a_planted_fault_is_a_failure(fault: str, questions: str, tmp_path: Path) -> None:
    code, outcomes = examined(tmp_path, fault, "--only", questions)
    assert code == 1
    assert {name: one["verdict"] for name, one in outcomes.items()} == dict.fromkeys(questions.split(","), "FAIL")
    assert all(one["expected"] and one["found"] and one["reason"] for one in outcomes.values()), outcomes


def test_gpus_that_are_not_there_are_a_failure(ddpprof: Run, tmp_path: Path) -> None:
    done = ddpprof("doctor", "--gpus", "64", "--only", "devices")
    assert (done.returncode, done.stderr) == (1, "")
    assert "0 passed, 1 failed, 0 skipped" in done.stdout
    assert "Wrote doctor.json. Attach it to a bug report." in done.stdout
    (only,) = json.loads((tmp_path / "doctor.json").read_text())["outcomes"]
    assert (only["verdict"], only["expected"]) == ("FAIL", "64 GPUs")


def test_an_unknown_check_is_one_line(ddpprof: Run) -> None:
    done = ddpprof("doctor", "--only", "aura")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ddpprof: argument --only: there is no check aura. Choose from: versions, devices")


@pytest.mark.long
def test_nothing_is_left_of_a_doctor_that_is_ended(tmp_path: Path) -> None:
    with started(*DDPPROF, "doctor", "--only", "parameters", cwd=tmp_path) as doctor:
        wait_until(lambda: len(children(doctor.pid)) > 2, "had ranks")
        there = children(doctor.pid)
        doctor.terminate()
        doctor.wait(timeout=600)
    wait_until(lambda: not any(Path(f"/proc/{one}").exists() for one in there), "ended", 20)


def test_this_machine_is_well(tmp_path: Path) -> None:
    code, outcomes = examined(tmp_path, "")
    assert {name: one["verdict"] for name, one in outcomes.items()} == {
        name: "SKIP" if name in OF_GPUS else "PASS" for name in NAMES
    }, outcomes
    assert code == 0
    written = (tmp_path / "doctor.json").read_text()
    assert not any(part in written for part in (str(tmp_path), "/home/", "/root"))
