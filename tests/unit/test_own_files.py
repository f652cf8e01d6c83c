"""Files appear whole, under their name, and behind no link."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from ddpprof import own_files


def test_a_file_takes_the_place_of_a_link_and_not_of_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    own_files.write_whole(tmp_path / "file", b"new")
    assert ((tmp_path / "file").read_bytes(), (tmp_path / "elsewhere").read_text()) == (b"new", "precious")
    assert not (tmp_path / "file").is_symlink()


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="full"), own_files.whole_file(tmp_path / "file") as part:  # noqa: PT012
        part.write_text("half")
        raise OSError("full")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


@pytest.mark.parametrize(
    ("age_s", "is_locked", "stays"),
    [
        pytest.param(3600, False, False, id="its-writer-is-dead"),
        pytest.param(3600, True, True, id="its-writer-lives"),
        pytest.param(0, False, True, id="its-writer-may-be-about-to-lock-it"),
    ],
)
def test_what_a_killed_process_left_goes_when_the_file_is_written_next(
    tmp_path: Path, age_s: int, is_locked: bool, stays: bool
) -> None:
    left = tmp_path / own_files.part_name("file")
    with left.open("wb") as file:
        if is_locked:
            fcntl.flock(file, fcntl.LOCK_EX)
        now = left.stat().st_mtime
        os.utime(left, (now - age_s, now - age_s))
        own_files.write_whole(tmp_path / "file", b"new")
    assert left.exists() == stays


def test_new_files_are_not_for_everybody_on_the_machine(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        own_files.write_whole(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_link_to_a_folder_is_removed_and_not_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    own_files.remove_folder(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
