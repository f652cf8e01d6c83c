"""Files appear whole, under their name, and behind no link."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddpprof import own_files
from ddpprof.cli import main
from ddpprof.own_files import scratch_folder
from ddpprof.record import launch

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "convnet-gloo-2ranks"


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
    ("is_locked", "stays"),
    [
        pytest.param(False, False, id="its-writer-is-dead"),
        pytest.param(True, True, id="its-writer-lives"),
    ],
)
def test_what_a_killed_process_left_goes_when_the_file_is_written_next(
    tmp_path: Path, is_locked: bool, stays: bool
) -> None:
    left = tmp_path / own_files.part_name("file")
    with left.open("wb") as file:
        if is_locked:
            fcntl.flock(file, fcntl.LOCK_EX)
        own_files.write_whole(tmp_path / "file", b"new")
    assert left.exists() == stays


@pytest.mark.parametrize("age_s", [pytest.param(3600, id="an-hour"), pytest.param(48 * 3600, id="two-days")])
def test_without_locks_only_what_is_old_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    left = tmp_path / own_files.part_name("file")
    left.touch()
    os.utime(left, (left.stat().st_mtime - age_s,) * 2)
    own_files.write_whole(tmp_path / "file", b"new")
    assert left.exists() == (age_s == 3600)


def test_who_is_taken_for_dead_before_the_lock_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, removed = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    own_files.write_whole(tmp_path / "file", b"new")
    assert removed
    assert (tmp_path / "file").read_bytes() == b"new"


def test_new_files_are_not_for_everybody_on_the_machine(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        own_files.write_whole(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_everybody_may_read_new_files_where_the_user_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own_files.WORLD_READABLE, "1")
    before = os.umask(0o002)
    try:
        own_files.write_whole(tmp_path / "file", b"new")
        own_files.make_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder")] == [0o644, 0o755]


@pytest.mark.parametrize("options", [[], ["--world-readable"]])
def test_reports_and_runs_obey_one_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    monkeypatch.setenv(own_files.WORLD_READABLE, "")  # what the option sets goes with the test
    before = os.umask(0)
    try:
        assert (
            main(["report", str(SAMPLE), "--no-cache", "--jobs", "1", *options, "--out", str(tmp_path / "a.json")]) == 0
        )
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == (0o644 if options else 0o640)


def test_what_the_user_names_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "page").symlink_to(tmp_path / "elsewhere")
    own_files.write_named(tmp_path / "page", b"new")
    assert (tmp_path / "page").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"new"


def test_a_link_to_a_folder_is_removed_and_not_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    own_files.remove_folder(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_kept_by_one_process_at_a_time(tmp_path: Path) -> None:
    with own_files.reserved(tmp_path / "run"):
        with pytest.raises(own_files.LockedError, match=str(os.getpid())), own_files.reserved(tmp_path / "x/../run"):
            pytest.fail("it was given twice")
        with own_files.reserved(tmp_path / "other"):
            pass
    with own_files.reserved(tmp_path / "run"):
        assert not (tmp_path / "run").exists(), "nothing is written"


@pytest.mark.parametrize("command", ["trace", "watch"])
def test_a_second_job_into_one_folder_is_refused_before_it_starts(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        pytest.fail("the job was started")

    monkeypatch.setattr(launch, "run_job", start)
    script = tmp_path / "train.py"
    script.touch()
    with own_files.reserved(tmp_path / "run"):
        assert {own_files.holder_of(tmp_path / "run") for _ in range(3)} == {str(os.getpid())}
        assert main([command, "--out", str(tmp_path / "run"), str(script)]) == 2
    said = capsys.readouterr().err
    assert f"another ddpprof process ({os.getpid()}) is recording into {tmp_path / 'run'}" in said
    assert "The job was not started." in said


def test_a_process_without_descriptors_can_still_write_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "_SPARE", spare := [os.open(os.devnull, os.O_RDONLY)])
    opened = os.open

    def full(*arguments: Any) -> int:
        if spare:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(*arguments)

    monkeypatch.setattr(os, "open", full)
    os.close(own_files.create(tmp_path / "facts.json"))
    assert not spare


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_the_block(here: Path) -> None:
    with suppress(KeyError), scratch_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x")
        raise KeyError
    assert list(here.iterdir()) == []


def test_links_and_folders_of_others_stay(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (here / ".ddpprof.1-0123abcd.part").symlink_to(elsewhere)
    (here / "ddpprof-plain").mkdir()
    with scratch_folder():
        pass
    assert {path.name for path in here.iterdir()} == {".ddpprof.1-0123abcd.part", "ddpprof-plain"}
    assert (elsewhere / "file").exists()


def test_sockets_fit_where_the_directory_for_temporary_files_has_a_long_name(here: Path) -> None:
    assert len(str(here)) > 40
    with scratch_folder(for_sockets=True) as folder:
        inside = folder / "pymp-12345678"
        inside.mkdir()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(inside / "listener-12345678"))
    assert not folder.exists()
    with scratch_folder() as folder:
        assert folder.parent == here
