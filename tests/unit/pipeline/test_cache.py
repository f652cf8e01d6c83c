"""Entries are of this user alone, and count as long as their files have the same size and time."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from ddpprof.pipeline.analysis import analysed
from ddpprof.pipeline.entry import code_version

RUN = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(RUN, tmp_path / "run", ignore=shutil.ignore_patterns("tensorboard"))


def read(run: Path) -> list[str]:
    """Read a run; return the names of the traces that were read for it."""
    seen: list[str] = []
    with analysed(run, watch=lambda step: seen.append(step.path.name)):
        return sorted(set(seen))


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "ddpprof" / "summaries").glob("*/*.zip"))


def test_nobody_else_may_enter_their_folder_and_nothing_is_written_into_the_run(run: Path, tmp_path: Path) -> None:
    before = sorted(run.iterdir())
    assert len(read(run)) == 2
    assert read(run) == []
    assert sorted(run.iterdir()) == before
    (folder,) = {entry.parent for entry in entries(tmp_path)}
    assert [one.stat().st_mode & 0o777 for one in (folder, folder.parent)] == [0o700, 0o700]


def test_a_changed_file_is_read_again(run: Path) -> None:
    read(run)
    os.utime(run / "rank-1.trace.json.gz", ns=(1, 1))
    assert read(run) == ["rank-1.trace.json.gz"]
    steps = run / "rank-0.steps.jsonl"
    steps.write_bytes(steps.read_bytes() + b"\n")
    assert read(run) == ["rank-0.trace.json.gz"]


def test_a_copied_run_has_entries_of_its_own(run: Path, tmp_path: Path) -> None:
    read(run)
    assert len(read(shutil.copytree(run, tmp_path / "copy"))) == 2
    assert len(entries(tmp_path)) == 4


def test_damaged_entries_and_those_of_other_code_are_made_anew(run: Path, tmp_path: Path) -> None:
    read(run)
    first, second = entries(tmp_path)
    first.write_bytes(first.read_bytes()[:100])
    old = second.rename(second.with_name("rank-1.000000000000-00000000.zip"))
    assert len(read(run)) == 2
    assert not old.exists()
    assert entries(tmp_path) == [first, second]
    assert all(code_version() in entry.name for entry in entries(tmp_path))


def test_where_others_may_write_among_the_entries_none_is_kept(run: Path, tmp_path: Path) -> None:
    read(run)
    entries(tmp_path)[0].parent.chmod(0o777)
    assert len(read(run)) == 2


def test_what_nobody_has_read_for_a_month_is_removed(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "cache" / "ddpprof" / "summaries" / "other"
    read(run)
    other.mkdir()
    read(run)
    assert other.exists()
    a_month_ago = time.time() - 31 * 24 * 3600
    os.utime(other, (a_month_ago, a_month_ago))
    read(run)
    assert not other.exists()
