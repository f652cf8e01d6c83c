"""The environment in which a job is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.errors import CannotRecord
from ddpprof.record.launch import _nccl_log_variables, clear_out
from ddpprof.record.settings import Settings


def test_nccl_logs_into_the_run_directory(tmp_path: Path) -> None:
    """NCCL itself replaces ``%h`` and ``%p``, and prints to the terminal if there is no folder."""
    assert _nccl_log_variables(tmp_path / "run", {"PATH": "/bin"}) == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING,GRAPH",
        "NCCL_DEBUG_FILE": str(tmp_path / "run" / "nccl" / "%h.%p.txt"),
    }
    assert (tmp_path / "run" / "nccl").is_dir()


def test_variables_of_the_user_are_kept(tmp_path: Path) -> None:
    given = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/logs/%p"}
    assert list(_nccl_log_variables(tmp_path, given)) == ["NCCL_DEBUG_SUBSYS"]


def test_a_folder_that_cannot_be_created_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(CannotRecord, match="cannot create"):
        _nccl_log_variables(tmp_path / "run", {})


@pytest.mark.parametrize(("force", "are_left"), [(True, False), (False, True)])
def test_logs_of_an_earlier_run_are_replaced_with_it(force: bool, are_left: bool, tmp_path: Path) -> None:
    log = tmp_path / "nccl" / "node.7.txt"
    log.parent.mkdir()
    log.write_text("")
    clear_out(Settings(str(tmp_path), force=force))
    assert log.exists() == are_left
