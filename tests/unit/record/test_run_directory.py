"""Which folder a run goes to: attempts of one job, earlier runs, and hosts that do not see it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpprof import rundir
from ddpprof.errors import RunExists
from ddpprof.model.json_files import TorchrunJob
from ddpprof.record import run_directory
from ddpprof.record.job import JobRank
from ddpprof.record.launch import clear_out
from ddpprof.record.run_directory import agent_of_this_process, is_restart, next_attempt, open_run, torchrun_job
from ddpprof.record.settings import Settings

Out = pytest.CaptureFixture[str]


def keep(directory: Path) -> None:
    settings = Settings(str(directory), command=("train.py",))
    run_directory.keep_part(directory, settings, "mine", world_size=4, leader=0, warn=JobRank(settings).warn)


def write(directory: Path, run_id: str) -> None:
    (directory / "run.json").write_text(json.dumps({"run_id": run_id}))


def test_the_folder_of_rank_0_is_left_alone(tmp_path: Path, capsys: Out) -> None:
    write(tmp_path, "mine")
    before = (tmp_path / "run.json").read_bytes()
    keep(tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before
    assert capsys.readouterr().err == ""


def test_a_file_system_that_shows_it_late(tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "_PATIENCE_S", 30.0)
    later = threading.Timer(0.3, write, (tmp_path, "mine"))
    later.start()
    keep(tmp_path)
    later.join()
    assert "is_part" not in json.loads((tmp_path / "run.json").read_text())
    assert capsys.readouterr().err == ""


def test_a_folder_of_its_own_becomes_a_part_and_says_so_once(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "_PATIENCE_S", 0.1)
    keep(tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    assert (about["run_id"], about["world_size"], about["is_part"]) == ("mine", 4, True)
    (line,) = capsys.readouterr().err.splitlines()
    host = socket.gethostname()
    assert line.endswith(
        f"rsync -a {host}:{tmp_path}/ {tmp_path}-{host}/ && ddpprof report {tmp_path} {tmp_path}-{host}"
    )
    monkeypatch.setattr(run_directory, "_PATIENCE_S", 30.0)
    began = time.monotonic()
    keep(tmp_path)  # the next rank of this host
    assert time.monotonic() - began < 10
    assert capsys.readouterr().err == ""


def test_an_earlier_run_of_this_host_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "_PATIENCE_S", 0.1)
    write(tmp_path, "earlier")
    with pytest.raises(RunExists, match="contains an earlier run on this host"):
        keep(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["run_id"] == "earlier"


HOST = socket.gethostname()
JOB = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "1"}
NAMELESS = {**JOB, "TORCHELASTIC_RUN_ID": "none"}
GONE = 1 << 22
"""a process id that Linux gives to nobody"""


def recorded(directory: Path, created: float = 100.0, **elastic: Any) -> Path:
    directory.mkdir(exist_ok=True)
    found = {
        "agent": f"job@{HOST}:{os.getppid()}",
        "run_id": "job",
        "restarts": 0,
        "host": HOST,
        "pid": GONE,
        **elastic,
    }
    (directory / "run.json").write_text(
        json.dumps({"format": 1, "run_id": "1", "created_unix_s": created, "elastic": found})
    )
    (directory / "rank-0.facts.json").write_text("{}")
    return directory


def settings(out: Path, launched: float | None = None, **more: Any) -> Settings:
    return Settings(str(out), launched_unix_s=launched, **more)


Under = Callable[[Mapping[str, str]], None]


@pytest.fixture(autouse=True)
def under(monkeypatch: pytest.MonkeyPatch) -> Under:
    """Return a function that sets torchrun's variables, of which there are none at first."""

    def set_variables(variables: Mapping[str, str]) -> None:
        for name in JOB:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    set_variables({})
    return set_variables


def test_what_a_run_says_of_its_job(tmp_path: Path, under: Under) -> None:
    assert torchrun_job(settings(tmp_path)) is None
    assert agent_of_this_process() is None
    under(JOB)
    agent = f"job@{HOST}:{os.getppid()}"
    assert torchrun_job(settings(tmp_path)) == TorchrunJob(
        agent=agent, run_id="job", restarts=1, host=HOST, pid=os.getpid()
    )
    under(NAMELESS)
    nameless = torchrun_job(settings(tmp_path, agent="given"))
    assert nameless is not None
    assert (nameless.agent, nameless.run_id) == ("given", None)


@pytest.mark.parametrize(
    ("elastic", "launched", "environment", "number"),
    [
        pytest.param({}, None, JOB, 1, id="the-same-agent"),
        pytest.param({}, None, {}, 0, id="no-torchrun"),
        pytest.param({"pid": os.getpid()}, None, JOB, 0, id="the-same-process"),
        pytest.param({"pid": os.getppid()}, None, JOB, 0, id="a-process-that-started-this-one"),
        pytest.param({"pid": os.getpid(), "host": "another"}, None, JOB, 1, id="the-same-number-elsewhere"),
        pytest.param({"agent": "job@another:7"}, None, JOB, 0, id="another-agent"),
        pytest.param({"agent": "job@another:7"}, 99.0, JOB, 1, id="rank-0-moved"),
        pytest.param({"agent": "job@another:7"}, 101.0, JOB, 0, id="an-earlier-job-of-the-same-name"),
        pytest.param({"agent": "x@another:7", "run_id": "x"}, 99.0, JOB, 0, id="another-job-beside-it"),
        pytest.param({"agent": "none@another:7", "run_id": None}, 99.0, NAMELESS, 0, id="jobs-without-a-name"),
    ],
)
def test_whose_attempt_it_is(
    elastic: dict[str, Any],
    launched: float | None,
    environment: Mapping[str, str],
    number: int,
    tmp_path: Path,
    under: Under,
) -> None:
    recorded(tmp_path, **elastic)
    under(environment)
    assert next_attempt(tmp_path, settings(tmp_path, launched)) == number


@pytest.mark.parametrize("text", ["", "[]", '{"elastic": 3}', '{"elastic": {}}', "{"])
def test_files_of_others_are_no_attempts(text: str, tmp_path: Path, under: Under) -> None:
    under(JOB)
    (tmp_path / "run.json").write_text(text)
    assert next_attempt(tmp_path, settings(tmp_path, 1.0)) == 0


def test_the_latest_attempt_counts(tmp_path: Path, under: Under) -> None:
    under(JOB)
    recorded(tmp_path)
    recorded(tmp_path / "attempt-3")
    (tmp_path / "attempt-7").mkdir()
    recorded(tmp_path / "attempt-x")
    assert next_attempt(tmp_path, settings(tmp_path)) == 4
    recorded(tmp_path / "attempt-3", pid=os.getpid())
    assert next_attempt(tmp_path, settings(tmp_path)) == 0


def test_attempts_stand_beside_each_other(tmp_path: Path, under: Under) -> None:
    out = recorded(tmp_path / "run")
    under(JOB)
    assert open_run(settings(out), "id", 2) == out / "attempt-1"
    about = json.loads((out / "attempt-1" / "run.json").read_text())
    assert (about["attempt"], about["elastic"]["restarts"], about["world_size"]) == (1, 1, 2)
    assert not {"agent", "launched_unix_s"} & set(about["settings"])
    assert (out / "rank-0.facts.json").exists()
    with pytest.raises(RunExists):  # a second recording of this process
        open_run(settings(out), "id", 2)


def test_of_several_jobs_of_a_command_the_first_is_recorded(tmp_path: Path) -> None:
    launched = settings(tmp_path / "run", time.time())
    open_run(launched, "id", 2)
    with pytest.raises(
        RunExists, match=r"the command starts more than one training job\. Only the first job is recorded, in "
    ):
        open_run(launched, "another", 2)
    with pytest.raises(RunExists, match="contains an earlier run"):
        open_run(settings(tmp_path / "run", time.time() + 1), "id", 2)


def test_force_replaces_all_attempts_of_another_job(tmp_path: Path) -> None:
    out = recorded(tmp_path / "run")
    recorded(out / "attempt-1")
    recorded(out / "attempt-2")
    (out / "attempt-2" / "notes.txt").write_text("mine")
    assert open_run(settings(out, force=True), "id", 2) == out
    assert list(rundir.attempts_in(out)) == [0]
    assert sorted(os.listdir(out)) == ["attempt-2", "run.json"]
    assert os.listdir(out / "attempt-2") == ["notes.txt"]


def test_a_launcher_inside_a_restarted_job_does_not_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = recorded(tmp_path / "run", agent="job@another:7")
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    assert is_restart(out, settings(out))
    assert clear_out(settings(out, force=True), inside=True) == settings(out)
    assert (out / "rank-0.facts.json").exists()
    with pytest.raises(RunExists):
        clear_out(settings(out))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not is_restart(out, settings(out))
    assert is_restart(recorded(tmp_path / "other"), settings(tmp_path / "other")), "a change of nodes is no restart"


@pytest.mark.parametrize(("after_s", "is_kept"), [(-5.0, False), (5.0, True), (None, False)])
def test_the_end_of_a_rank_that_failed_before_the_run_was_created_is_kept(
    after_s: float | None, is_kept: bool, tmp_path: Path
) -> None:
    ends = tmp_path / rundir.EXITS_FILE
    ends.write_text('{"rank": 1, "exit_code": 1}\n')
    launched_s = None if after_s is None else ends.stat().st_mtime - after_s
    open_run(Settings(str(tmp_path), launched_unix_s=launched_s), "id", 2)
    assert ends.exists() is is_kept
