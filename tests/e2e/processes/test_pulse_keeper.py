"""What outlives a killed rank."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from processes import wait_until

from ddpprof.monitor.pulse_files import gather_left, read_pulse
from ddpprof.rundir import LAST_STEP, last_step_file

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")


RANK = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, {support!r})
from pulse_writers import identity, keep
from ddpprof.model.pulse_layout import state_word
from ddpprof.record.pulse import PulseWriter
pulse = PulseWriter(identity(Path({directory!r})), threading.get_ident())
keep(pulse)
pulse.step_ends(1)
while pulse.words[state_word("num_steps")] == 0:
    time.sleep(0.01)
print(pulse.identity.shared, flush=True)
time.sleep(60)
"""


def test_a_killed_rank_leaves_its_pulse(tmp_path: Path) -> None:
    program = RANK.format(support=str(Path(__file__).parents[2] / "support"), directory=str(tmp_path))
    rank = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    shared = Path(rank.stdout.readline().strip())
    gather_left()
    assert shared.exists()  # it lives
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    rank.stdout.close()
    assert read_pulse(tmp_path, 0).state.num_steps == 1
    gather_left()
    wait_until(lambda: not shared.exists(), "gathered, perhaps by a job of another test")
    assert read_pulse(tmp_path, 0).state.num_steps == 1
    last_step = struct.unpack(LAST_STEP, (tmp_path / last_step_file(0)).read_bytes())
    assert last_step == (1, read_pulse(tmp_path, 0).state.step_since_ns)
