"""A process's place in the job."""

from pathlib import Path

import pytest

from ddpprof.errors import DdpprofError
from ddpprof.record.job import Job
from ddpprof.record.settings import Settings


def test_of_processes_that_train_apart_only_the_first_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    first = Job(Settings(str(tmp_path)))
    first.attach_alone()
    assert first.open_files()
    assert first.files is not None
    first.files.close()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(DdpprofError, match="only the first is recorded"):
        Job(Settings(str(tmp_path))).attach_alone()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.last_step", "rank-0.steps.jsonl", "run.json"]
