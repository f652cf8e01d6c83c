"""Unit tests start no processes: what needs them is in tests/e2e/."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
_started: list[str] = []
_LOOKS_FOR_FONTS = "fc-list"
"""what matplotlib starts when it is imported for the first time on a machine"""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS and not (event == "subprocess.Popen" and _LOOKS_FOR_FONTS in str(arguments[0])):
        _started.append(event)


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(process: BaseProcess) -> None:
        pytest.fail(f"a unit test starts {process.name}: move it to tests/e2e/processes/")

    monkeypatch.setattr(BaseProcess, "start", refuse)
    _started.clear()
    yield
    assert not _started, "a unit test starts a process: move it to tests/e2e/processes/"
