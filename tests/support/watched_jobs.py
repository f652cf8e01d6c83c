"""Jobs whose ranks have a pulse, as tests look at them while they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.model.pulse import Pulse
from ddpprof.monitor.pulse_files import SHARED_FOLDER, read_pulse
from ddpprof.rundir import pulses_in

NEEDS_SHARED_MEMORY = pytest.mark.skipif(not SHARED_FOLDER.is_dir(), reason=f"this system has no {SHARED_FOLDER}")
TWO = ("--nproc-per-node", "2")


def pulses(run: Path) -> list[Pulse]:
    return [read_pulse(run, rank) for rank in pulses_in(run)]


def is_training(run: Path, num_steps: int) -> bool:
    try:
        return [pulse.state.num_steps >= num_steps for pulse in pulses(run)] == [True, True]
    except OSError:
        return False
