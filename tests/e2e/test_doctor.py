"""`ddpprof doctor` finds a machine and an installation well, and every fault that is planted in them.

make doctor-faults    plants all faults of training; test-long plants one of them
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, Run, environment
from processes import children, started, wait_until

from ddpprof.doctor.catalogue import NAMES, TRAINING

pytestmark = pytest.mark.e2e

FAULTS_FOLDER = Path(__file__).parent.parent / "faults"
AT_ONCE = 3
"""doctors; the faults are large enough to be seen on busy cores"""

FAULTS_OF_TRAINING = {
    "changed_training": "parameters,collectives,export-pause",
    "wrong_times,lost_parts": "step-time,parts-of-step,after-the-window",
    "unused_without_reason": "unused-parameters,bucket-bytes",
    "lost_steps": "amp-steps,closure-steps,compiled-steps",
    "half_a_delay": "delay",
    "hasty_clock": "bucket-times",
    "long_replay": "replay",
    "slow_netbench": "netbench",
    "lingering_ranks": "exception",
    "lingering_ranks,": "ctrl-c",
    "lingering_ranks,,": "sigterm",
}
"""what is planted, and the questions whose answers it must turn; commas set equal faults apart"""
PLANTED = FAULTS_OF_TRAINING if os.environ.get("DDPPROF_ALL_FAULTS") else ("lost_steps",)

ENDINGS = ("exception", "ctrl-c", "sigterm")
OF_TIMES = [*(name for check in TRAINING if check.alone for name in check.names), *ENDINGS]
QUICKER = tuple(name for name in NAMES if name not in OF_TIMES or name == "sigterm")
"""those that measure no times, and one of the endings"""
OF_GPUS = (
    "other-profilers", "synchronising-calls", "foreign-contexts", "graph-memory", "beside-nsys", "exposed", "overhead",
)  # fmt: skip
"""skipped here; their faults are planted in tests/unit/doctor/test_on_gpus.py"""


def examined(folder: Path, faults: str, names: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*DDPPROF, "doctor", "--only", names],
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


@pytest.fixture(scope="module")
def examinations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[tuple[int, dict[str, Any]]]]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            faults: pool.submit(examined, tmp_path_factory.mktemp("planted"), faults, FAULTS_OF_TRAINING[faults])
            for faults in PLANTED
        }


@pytest.mark.long
@pytest.mark.parametrize("faults", PLANTED)
def test_a_planted_fault_of_training_is_a_failure(
    faults: str, examinations: dict[str, Future[tuple[int, dict[str, Any]]]]
) -> None:
    code, outcomes = examinations[faults].result()
    assert code == 1
    assert {name: one["verdict"] for name, one in outcomes.items()} == dict.fromkeys(
        FAULTS_OF_TRAINING[faults].split(","), "FAIL"
    )
    assert all(one["expected"] and one["found"] and one["reason"] for one in outcomes.values()), outcomes


@pytest.mark.long
def test_a_planted_fault_of_torch_is_a_failure(tmp_path: Path) -> None:
    code, outcomes = examined(tmp_path, "no_backends,blind_profiler", "devices,backends,profiler")
    assert code == 1
    assert {name: one["verdict"] for name, one in outcomes.items()} == {
        "devices": "PASS",
        "backends": "FAIL",
        "profiler": "FAIL",
    }


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
    with started(*DDPPROF, "doctor", "--only", "sigterm", cwd=tmp_path) as doctor:
        wait_until(lambda: len(children(doctor.pid)) > 3, "had ranks")
        there = children(doctor.pid)
        doctor.terminate()
        doctor.wait(timeout=600)
    wait_until(lambda: not any(Path(f"/proc/{one}").exists() for one in there), "ended", 20)


def test_every_question_about_training_has_its_fault() -> None:
    found = {name for names in FAULTS_OF_TRAINING.values() for name in names.split(",")}
    assert found == {name for check in TRAINING for name in check.names} - set(OF_GPUS)


@pytest.mark.long
@pytest.mark.parametrize("names", [QUICKER, NAMES], ids=["quicker", "all"])
def test_this_machine_is_well(names: tuple[str, ...], tmp_path: Path) -> None:
    """Other work on the machine can spoil a measurement, so the doctor is asked up to five times."""
    _, outcomes = examined(tmp_path, "", ",".join(names))
    assert sorted(outcomes) == sorted(names)
    for _ in range(4):
        if failed := [name for name in OF_TIMES if name in names and outcomes[name]["verdict"] == "FAIL"]:
            outcomes |= examined(tmp_path, "", ",".join(failed))[1]
    expected = {name: "SKIP" if name in OF_GPUS else "PASS" for name in names}
    assert {name: one["verdict"] for name, one in outcomes.items()} == expected, outcomes
    written = (tmp_path / "doctor.json").read_text()
    assert not any(part in written for part in (str(tmp_path), "/home/", "/root"))
