"""Entries of the cache count only if this user wrote them, and as they were written."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpprof.load.run import find_ranks
from ddpprof.pipeline.analysis import analysed
from ddpprof.pipeline.cache import cache_of
from ddpprof.pipeline.entry import About, seen_files, write_entry
from ddpprof.report.rank_summary import RunSummary

RUN = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that this user has read once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    copy = tmp_path / "run"
    shutil.copytree(RUN, copy, ignore=shutil.ignore_patterns("summaries", "tensorboard"))
    _num_steps(copy)
    return copy


def _num_steps(run: Path) -> list[int]:
    with analysed(run) as analysis:
        return [len(rank.steps) for rank in analysis.report.ranks]


def test_an_entry_that_another_user_wrote_for_the_same_files_is_not_believed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _num_steps(run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    with analysed(run) as analysis:
        modules = analysis.modules
    ranks = find_ranks(run).ranks
    with cache_of(run, ranks, modules, None, keep=True) as cache:
        forged = io.BytesIO()
        write_entry(forged, About(seen_files(ranks[0]), is_whole=True), RunSummary(), None)
        cache.write(ranks[0], lambda part: _fill(part, forged.getvalue()))
        assert cache.holds(ranks[0])
    assert _num_steps(run) == expected[1:], "else it is no forgery"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert _num_steps(run) == expected


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _one_byte_changed(entry: Path) -> None:
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)


def _a_pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


def _a_folder(entry: Path) -> None:
    entry.unlink()
    entry.mkdir()


def _a_link_to_endless_zeros(entry: Path) -> None:
    entry.unlink()
    entry.symlink_to("/dev/zero")


def _a_huge_file(entry: Path) -> None:
    os.truncate(entry, 1 << 40)


def _a_bomb(entry: Path) -> None:
    with zipfile.ZipFile(entry, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("about", bytes(1 << 28))


@pytest.mark.parametrize(
    "spoil", [_one_byte_changed, _a_pipe, _a_folder, _a_link_to_endless_zeros, _a_huge_file, _a_bomb]
)
def test_a_damaged_entry_is_not_opened_and_made_anew(run: Path, spoil: Callable[[Path], None]) -> None:
    expected = _num_steps(run)
    entry = min((run / "summaries").glob("rank-0.*.zip"))
    whole = entry.read_bytes()
    spoil(entry)
    assert _num_steps(run) == expected
    assert entry.read_bytes() == whole


def test_where_others_may_write_among_the_entries_they_go_to_the_users_own_folder(run: Path, tmp_path: Path) -> None:
    (run / "summaries").chmod(0o777)
    for entry in (run / "summaries").glob("*.zip"):
        entry.unlink()
    _num_steps(run)
    assert not list((run / "summaries").glob("*.zip"))
    assert len(list((tmp_path / "mine").rglob("rank-*.zip"))) == 2
