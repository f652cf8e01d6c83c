"""Unit tests start no processes: what needs them is in tests/e2e/."""

from __future__ import annotations

import sys
from multiprocessing.process import BaseProcess

import pytest

_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
_started: list[str] = []
sys.addaudithook(lambda event, _arguments: _started.append(event) if event in _STARTS else None)


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> object:
    def refuse(process: BaseProcess) -> None:
        pytest.fail(f"a unit test starts {process.name}: move it to tests/e2e/processes/")

    monkeypatch.setattr(BaseProcess, "start", refuse)
    _started.clear()
    yield
    assert not _started, "a unit test starts a process: move it to tests/e2e/processes/"
