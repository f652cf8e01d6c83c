"""Folders for the time that a command takes go with it, or with the next one."""

from __future__ import annotations

import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from ddpprof.own_files import scratch_folder


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
