"""The files with what a watcher has found."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.whole_run import Pause, PauseKind, SlowdownCause, Slowdowns, StepPart, StepSlowdown
from ddpprof.monitor.pulse_files import read_slowdowns, read_verdict, write_slowdowns, write_verdict
from ddpprof.rundir import HANG_FILE, SLOWDOWNS_FILE

MS = 1_000_000
SLOW = StepSlowdown(4200, None, 61 * MS, 72 * MS, 40, None, None, SlowdownCause.OWN_TIME, (3,), StepPart.FORWARD)


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    slowdowns = Slowdowns((SLOW,), (Pause(PauseKind.EPOCH, 1, 5),))
    write_slowdowns(tmp_path, slowdowns)
    assert read_slowdowns(tmp_path) == slowdowns


def test_a_file_with_a_time_that_no_clock_shows_is_not_read(tmp_path: Path) -> None:
    write_verdict(tmp_path, Verdict(Fault.OWN_CODE, rank=1, waiting=(0,), since_unix_ns=10**18, at_unix_ns=10**18))
    assert read_verdict(tmp_path) is not None
    (tmp_path / HANG_FILE).write_text((tmp_path / HANG_FILE).read_text().replace(f"{10**18}", f"{10**30}"))
    slowdowns = tmp_path / SLOWDOWNS_FILE
    write_slowdowns(tmp_path, Slowdowns((replace(SLOW, began_ns=10**18),)))
    slowdowns.write_text(slowdowns.read_text().replace(f"{10**18}", f"{10**21}"))
    assert (read_verdict(tmp_path), read_slowdowns(tmp_path)) == (None, None)
