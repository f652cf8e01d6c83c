"""Parts of one run, kept by hosts that share no file system, are read as one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from remotes import CONVNET

from ddpprof.cli import main

Out = pytest.CaptureFixture[str]


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    """What two hosts have kept: each its rank, and the second a ``run.json`` of its own making."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, others in ((first, "rank-1.*"), (second, "rank-0.*")):
        shutil.copytree(CONVNET, folder, ignore=shutil.ignore_patterns("tensorboard", others))
    about = json.loads((second / "run.json").read_text())
    kept = {name: about[name] for name in ("format", "run_id", "world_size")}
    (second / "run.json").write_text(json.dumps({**kept, "command": ["elsewhere"], "is_part": True}))
    return first, second


def report(capsys: Out, *words: object) -> dict[str, object]:
    assert main(["report", *map(str, words), "--format", "json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rank-0-first", "rank-0-last"])
def test_parts_are_read_as_one_run(
    order: tuple[int, int], parts: tuple[Path, Path], capsys: Out, tmp_path: Path
) -> None:
    shutil.copytree(CONVNET, tmp_path / "whole" / "first", ignore=shutil.ignore_patterns("tensorboard"))
    whole = report(capsys, tmp_path / "whole" / "first")
    assert report(capsys, *(parts[place] for place in order)) == whole
    assert whole["missing"] == []


def test_a_part_alone_says_what_is_not_there(parts: tuple[Path, Path], capsys: Out) -> None:
    assert report(capsys, parts[1])["missing"] == ["rank 0 of 2 wrote no files"]


def test_a_rank_in_two_parts_is_read_once(parts: tuple[Path, Path], capsys: Out) -> None:
    found = report(capsys, *parts, parts[1])
    assert found["missing"] == ["rank 1 has data in several parts of the run. Only one part was read"]


def test_runs_of_two_jobs_are_no_parts(parts: tuple[Path, Path], capsys: Out) -> None:
    about = json.loads((parts[1] / "run.json").read_text())
    (parts[1] / "run.json").write_text(json.dumps({**about, "run_id": "another"}))
    assert main(["report", *map(str, parts)]) == 2
    assert "are not parts of the same run" in capsys.readouterr().err
