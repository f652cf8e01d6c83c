"""Exit codes of ranks that the script itself has started."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import ddpprof
from ddpprof.load.attempts import load_exits
from ddpprof.record import exits
from ddpprof.record.settings import Settings


@pytest.fixture
def notes_ends() -> ModuleType:
    path = Path(ddpprof.__file__).parent / "record" / "inject" / "_ddpprof_notes_ends.py"
    spec = importlib.util.spec_from_file_location("notes_ends", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Popen:
    """Stands for that of ``multiprocessing``: a child whose exit code becomes known at its second look."""

    def __init__(self, exit_code: int) -> None:
        self.pid, self.returncode = 7, None
        self._codes: list[Any] = [None, exit_code, exit_code]

    def poll(self) -> int | None:
        self.returncode = self._codes.pop(0)
        return self.returncode


@pytest.mark.parametrize(("exit_code", "noted"), [(-9, [(7, -9)]), (0, [])])
def test_the_end_of_a_child_that_fails_is_noted_once(
    exit_code: int, noted: list[tuple[int, int]], notes_ends: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(exits, "note_child", lambda *child: found.append(child))
    popen = type("Popen", (Popen,), {})
    notes_ends.install_multiprocessing(SimpleNamespace(Popen=popen))
    child = popen(exit_code)
    assert [child.poll() for _ in range(3)] == [None, exit_code, exit_code]
    assert found == noted


def test_of_a_program_that_fails_again_and_again_only_the_first_ends_are_noted(
    notes_ends: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(exits, "note_child", lambda pid, _code: found.append(pid))
    for pid in range(300):
        notes_ends._note(pid, 1)
    assert found == list(range(256))


def test_a_module_without_that_method_is_left_alone(notes_ends: ModuleType) -> None:
    notes_ends.install_subprocess(SimpleNamespace(Popen=object))


@pytest.mark.parametrize(("is_torchrun", "num_noted"), [(False, 1), (True, 0)])
def test_torchrun_notes_its_ranks_by_itself(
    is_torchrun: bool, num_noted: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr(exits, "settings_from_environment", lambda: Settings(str(tmp_path)))
    monkeypatch.setenv(exits.AGENT, "1 here") if is_torchrun else monkeypatch.delenv(exits.AGENT, raising=False)
    exits.note_child(7, -9)
    assert [(one.pid, one.exit_code) for one in load_exits(tmp_path)] == [(7, -9)] * num_noted
