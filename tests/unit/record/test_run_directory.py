"""A rank that does not see what rank 0 has written begins a part of the run on its own host."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from ddpprof.errors import RunExists
from ddpprof.record import run_directory
from ddpprof.record.job import JobRank
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


def test_a_folder_of_its_own_becomes_a_part_and_says_so_once(tmp_path: Path, capsys: Out) -> None:
    keep(tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    assert (about["run_id"], about["world_size"], about["is_part"]) == ("mine", 4, True)
    (line,) = capsys.readouterr().err.splitlines()
    host = socket.gethostname()
    assert line.endswith(
        f"rsync -a {host}:{tmp_path}/ {tmp_path}-{host}/ && ddpprof report {tmp_path} {tmp_path}-{host}"
    )
    began = time.monotonic()
    keep(tmp_path)  # the next rank of this host
    assert time.monotonic() - began < 0.5
    assert capsys.readouterr().err == ""


def test_an_earlier_run_of_this_host_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "earlier")
    with pytest.raises(RunExists, match="holds an earlier run on this host"):
        keep(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["run_id"] == "earlier"
