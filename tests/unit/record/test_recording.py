"""A recording says how it ended, also if that was within a capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpprof.model import StepMode
from ddpprof.record.recording import Recording
from ddpprof.record.settings import Settings

STOPPED = "stopped recording: no space left."


class Steps:
    """Stands for a window, and keeps how it was told to have ended, and with how many steps."""

    mode = StepMode.DONE

    def __init__(self, step: int) -> None:
        self.step = step
        self.said: list[tuple[str | None, int]] = []

    def write_facts(self, ended: str | None) -> None:
        self.said.append((ended, self.step))

    close = write_facts

    def give_up(self) -> None:
        pass


@pytest.fixture
def main() -> Steps:
    return Steps(10)


@pytest.fixture
def capture() -> Steps:
    return Steps(13)


@pytest.fixture
def within_a_capture(tmp_path: Path, main: Any, capture: Any) -> Recording:
    recording = Recording(Settings(str(tmp_path / "run")))
    recording._main_window, recording._window = main, capture
    return recording


def test_a_training_ends_within_a_capture(within_a_capture: Recording, main: Steps, capture: Steps) -> None:
    within_a_capture.close("finished")
    assert (main.said, capture.said) == ([("finished", 13)], [("finished", 13)])


def test_recording_stops_within_a_capture(within_a_capture: Recording, main: Steps, capture: Steps) -> None:
    within_a_capture.give_up(OSError("no space left"))
    assert (main.said, capture.said) == ([(STOPPED, 13)], [(STOPPED, 13)])
    within_a_capture.close("finished")
    assert len(main.said) == 1, "it has said already how it ended"
