"""The files with what a watcher has found."""

from __future__ import annotations

from pathlib import Path

from ddpprof.model.slowdown import Pause, PauseKind, SlowdownCause, Slowdowns, StepPart, StepSlowdown
from ddpprof.monitor.verdict_files import read_slowdowns, write_slowdowns

MS = 1_000_000
SLOW = StepSlowdown(4200, None, 61 * MS, 72 * MS, 40, None, None, SlowdownCause.OWN_TIME, (3,), StepPart.FORWARD)


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    slowdowns = Slowdowns((SLOW,), (Pause(PauseKind.EPOCH, 1, 5),))
    write_slowdowns(tmp_path, slowdowns)
    assert read_slowdowns(tmp_path) == slowdowns
