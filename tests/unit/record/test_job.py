"""A process's place in the job."""

from pathlib import Path
from typing import cast

import pytest
import torch.distributed as dist

from ddpprof.errors import DdpprofError
from ddpprof.record.agreement import Agreement
from ddpprof.record.device import TrainingDevice
from ddpprof.record.job import JobRank
from ddpprof.record.settings import Settings


def test_where_ranks_have_no_store_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under the MPI backend."""
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0])
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", dist.Store)
    job = JobRank(Settings(str(tmp_path / "run")))
    with pytest.raises(DdpprofError, match="MPI"):
        job.attach(cast("dist.ProcessGroup", None))
    assert not job.attached
    assert not (tmp_path / "run").exists()


def test_of_processes_that_train_apart_only_the_first_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    first = JobRank(Settings(str(tmp_path)))
    first.attach_alone()
    assert first.open_files(TrainingDevice())
    assert first.files is not None
    first.files.close()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(DdpprofError, match="only the first one is recorded"):
        JobRank(Settings(str(tmp_path))).attach_alone()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.last_step", "rank-0.steps.jsonl", "run.json"]


def test_a_rank_that_has_failed_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[float, ...]] = []

    def nobody_leads(_agreement: Agreement, *patience: float) -> None:
        waited.append(patience)

    monkeypatch.setenv("RANK", "0")
    failed = JobRank(Settings(str(tmp_path)))
    failed.attach_alone()
    monkeypatch.setattr(Agreement, "verdict", nobody_leads)
    with pytest.raises(DdpprofError, match="has not said where it records"):
        failed.open_files(None)
    assert waited == [(0.5, 0.5)] * 2
    with pytest.raises(DdpprofError):
        failed.open_files(TrainingDevice())
    assert waited[2:] == [()], "one that trains has patience"
