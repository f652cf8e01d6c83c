"""Pulses that a test writes as a training thread does, by a clock that the test moves."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Pulse, PulseIdentity
from ddpprof.monitor import pulse_files
from ddpprof.record.last_step import LastStep
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.pulse_keeper import PulseKeeper
from ddpprof.rundir import last_step_file


def identity(directory: Path, first_step: int = 0) -> PulseIdentity:
    return PulseIdentity(
        run_id="run",
        rank=0,
        world_size=1,
        host="host",
        machine_id=pulse_files.machine_id(),
        pid=os.getpid(),
        created_ns=time.time_ns(),
        shared=str(pulse_files.shared_path(0)),
        kept=str(directory / "rank-0.pulse"),
        first_step=first_step,
    )


class Clock:
    """Replacement for a clock, which only a test moves."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000

    def time_ns(self) -> int:
        return self.now_ns


def keep(pulse: PulseWriter, said: list[str] | None = None) -> PulseKeeper:
    last_step = LastStep(Path(pulse.identity.kept).with_name(last_step_file(0)))
    warn = (said if said is not None else []).append
    return PulseKeeper(pulse, last_step, threading.get_ident(), ((8, 4), (8,)), warn)


def decoded(pulse: PulseWriter) -> Pulse:
    pulse.rows.make()
    return layout.decode(bytes(pulse.memory))
