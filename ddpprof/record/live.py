"""Live scalars for TensorBoard: during training, the times of every step that the pulse has.

Each rank writes its own TensorBoard run, ``ddpprof-rank-N``, into the directory of the user's own writer, so that ranks
have the same tags. These differ from a report's, whose steps do not contain what happens between them. A separate
thread reads the pulse and writes; training does nothing for it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof import own_files
from ddpprof.errors import how_to_install
from ddpprof.model import UNKNOWN
from ddpprof.model.pulse import PulseSteps, StepFlag
from ddpprof.model.tables import rows_of
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.pulse_rows import PulseRows

NS_PER_MS = 1e6
_TIMES, _LAUNCHES = "ddp_live", "ddp_live_launches"
_EVERY_S = 1.0
_BETWEEN_S = 0.001
"""seconds that the writer yields to training after each step, which holds the interpreter's lock for 0.1 ms"""
_END_S = 10.0
"""seconds that the end of recording waits for the last steps to be written"""


def scalars_of(steps: PulseSteps, of_launches: bool = False) -> dict[str, NDArray[np.float64]]:
    """Return the scalars of steps by tag, shape (steps,), NaN where not known. The parts add up to a step.

    `of_launches`: an accelerator does the work, so the parts are the times that the host took to launch it.
    """
    parts_ns = {
        "forward": steps.forward_ns,
        "backward": steps.backward_ns,
        "optimizer": steps.optimizer_ns,
        "data": steps.data_ns,
    }
    parts_ns["other"] = steps.length_ns - np.sum(list(parts_ns.values()), axis=0)
    waiting_is_known = steps.wait_ns != UNKNOWN
    has_forward = steps.forward_ns > 0  # `DataParallel` tells only how long a step is
    group = _LAUNCHES if of_launches else _TIMES
    return {
        f"{_TIMES}/step_ms": steps.length_ns / NS_PER_MS,
        f"{_TIMES}/wait_ms": np.where(waiting_is_known, steps.wait_ns / NS_PER_MS, np.nan),
        f"{_TIMES}/own_ms": np.where(waiting_is_known, steps.own_ns / NS_PER_MS, np.nan),
        **{f"{group}/{name}_ms": np.where(has_forward, ns / NS_PER_MS, np.nan) for name, ns in parts_ns.items()},
    }


class LiveScalars:
    """Live scalars of one rank. Nothing here raises: a problem is reported once, and training and recording go on."""

    def __init__(self, target: Any) -> None:
        """Set the target: a ``SummaryWriter`` or its directory."""
        self._target = target
        self._records: Any = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, rank: int) -> None:
        """Create the file."""
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter

            directory = Path(getattr(self._target, "log_dir", self._target)) / f"ddpprof-rank-{rank}"
            own_files.make_named_folder(directory)
            path = directory / f"events.out.tfevents.{int(time.time()):010}.{os.getpid()}.ddpprof"
            records = RecordWriter(os.fdopen(own_files.overwrite(path), "wb"))
            records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
            self._records = records
        except Exception as error:
            _warn(error)

    def read(self, pulse: PulseWriter, of_launches: bool) -> None:
        """Begin to write the steps that `pulse` notes, if there is a file."""
        if self._records is None:
            return
        arguments = (self._records, pulse.rows, pulse.identity.first_step, of_launches)
        thread = threading.Thread(target=self._write, args=arguments, name="ddpprof-live", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many
            _warn(error)
            return
        self._thread = thread

    def close(self) -> None:
        """Write the last steps."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(_END_S)
        elif self._records is not None:
            with suppress(Exception):  # the disk may be full
                self._records.close()

    def _write(self, records: Any, rows: PulseRows, step: int, of_launches: bool) -> None:
        """Write steps from number `step` on until the end."""
        try:
            is_over = False
            while not is_over:
                is_over = self._ending.wait(_EVERY_S)
                steps = rows.since(step)  # if the disk is slow, the oldest are gone
                for event in _events(steps, of_launches):
                    records.write(event)
                    self._ending.wait(_BETWEEN_S)
                if len(steps):
                    step = int(steps.number[-1]) + 1
                records.flush()
        except Exception as error:
            self._thread = None
            _warn(error)
        finally:
            with suppress(Exception):  # the problem has been reported
                records.close()


def _events(steps: PulseSteps, of_launches: bool) -> Iterator[bytes]:
    """Yield one record with all scalars for each step, except those that also contain ddpprof's detailed recording."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    steps = rows_of(steps, steps.flags & StepFlag.RECORDED == 0)
    scalars = scalars_of(steps, of_launches)
    ends_s = (steps.start_ns + steps.length_ns) / 1e9
    for index, number in enumerate(steps.number.tolist()):
        known = {tag: float(values[index]) for tag, values in scalars.items() if not np.isnan(values[index])}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in known.items()]
        yield Event(wall_time=ends_s[index], step=number, summary=Summary(value=values)).SerializeToString()


def _warn(why: object) -> None:
    with suppress(Exception):  # stderr may be closed, or its disk full
        hint = f" {how_to_install('tensorboard')}." if isinstance(why, ImportError) else ""
        sys.stderr.write(f"ddpprof: no live scalars: {why}.{hint} Training goes on.\n")
