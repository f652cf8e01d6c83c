"""A rank without a pulse still counts its steps, and calls what it wraps."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from ddpprof.record.job import LastStep
from ddpprof.record.pulse import NoPulse
from ddpprof.rundir import LAST_STEP, last_step_file


def test_the_number_of_finished_steps_is_kept(tmp_path: Path) -> None:
    path = tmp_path / last_step_file(0)
    last_step = LastStep(path)
    before_ns = time.time_ns()
    NoPulse(last_step).step_ends(3)
    last_step.close()
    num_steps, ended_ns = struct.unpack(LAST_STEP, path.read_bytes())
    assert num_steps == 3
    assert before_ns <= ended_ns <= time.time_ns()


def test_before_there_are_files_nothing_is_kept() -> None:
    NoPulse().step_ends(1)


def test_originals_are_called() -> None:
    one = NoPulse()
    assert one.work_waits(str, 7) == "7"
    assert one.loader_fetches(next, iter([8])) == 8
    assert one.ddp_post_forward(lambda ddp, output: (ddp, output), "ddp", "output") == ("ddp", "output")
    assert not one.backward_begins(None)
