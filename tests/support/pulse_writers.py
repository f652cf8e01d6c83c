"""Pulses that a test writes as a training thread does, by a clock that the test moves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Pulse, PulseIdentity
from ddpprof.monitor import pulse_files
from ddpprof.record.job import LastStep
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


def keep(
    pulse: PulseWriter,
    said: list[str] | None = None,
    evaluates: Callable[[], bool] = lambda: False,
    is_preliminary: bool = False,
) -> PulseKeeper:
    last_step = LastStep(Path(pulse.identity.kept).with_name(last_step_file(0)))
    warn = (said if said is not None else []).append
    return PulseKeeper(pulse, last_step, ((8, 4), (8,)), evaluates, warn, is_preliminary=is_preliminary)


def decoded(pulse: PulseWriter) -> Pulse:
    pulse.rows.make()
    return layout.decode(bytes(pulse.memory))


class Reducer:
    """Stands for torch's: it tells when gradients came."""

    def __init__(self, *came_ns: int) -> None:
        self.came_ns = came_ns

    def get_backward_stats(self) -> list[int]:
        return list(self.came_ns)


def forward_ends(
    pulse: PulseWriter, clock: Clock, reducer: Reducer | None, synchronizes: bool = True, after_ns: int = 0
) -> None:
    """End a forward of a DDP module, on an accelerator if there is no `reducer`; DDP's own end takes `after_ns`."""

    inner_end_ns = clock.now_ns
    clock.now_ns += after_ns
    device = "cpu" if reducer else "cuda"
    module = SimpleNamespace(reducer=reducer, device_type=device, require_backward_grad_sync=synchronizes)
    pulse.forward_ends(module, inner_end_ns, None)  # type: ignore[arg-type]


def backward(pulse: PulseWriter, clock: Clock, reducer: Reducer | None, ns: int, synchronizes: bool = True) -> None:
    forward_ends(pulse, clock, reducer, synchronizes)
    pulse.backward_begins(())
    clock.now_ns += ns
    pulse.backward_ends()
