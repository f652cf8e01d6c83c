"""Live scalars for TensorBoard: the times of every step during training, as far as light recording knows them.

Each rank writes its own TensorBoard run, ``ddpprof-rank-N``, into the directory of the user's own writer, so that ranks
have the same tags. A separate thread writes; training only passes some numbers on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddpprof import own_files
from ddpprof.model import RecordedStep
from ddpprof.model.light_step import measure_recorded_breakdown

NS_PER_MS = 1e6
_MOST_WAITING = 10_000
"""most steps waiting to be written, if the disk is slow; then the oldest are dropped"""
_EVERY_S = 1.0
_BETWEEN_S = 0.001
"""seconds that the writer yields to training after each step, which holds the interpreter's lock for 0.1 ms"""
_END_S = 10.0
"""seconds that the end of recording waits for the last steps to be written"""


def scalars_of(step: RecordedStep, of_launches: bool = False) -> dict[str, float]:
    """Return the scalars of a step by tag, with the same tags and parts as the TensorBoard data of a report.

    `of_launches`: an accelerator does the work, so the parts are the times that the host took to launch it.
    """
    scalars = {"ddp/step_ms": (step.end_ns - step.start_ns) / NS_PER_MS}
    parts = measure_recorded_breakdown(step)
    if parts is None:
        return scalars
    group = "ddp_launches" if of_launches else "ddp_step"
    named = {f"{group}/{name.removesuffix('_ns')}_ms": ns / NS_PER_MS for name, ns in asdict(parts).items()}
    return {**scalars, **named}


class LiveScalars:
    """Live scalars of one rank. Nothing here raises: a problem is reported once, and training and recording go on."""

    def __init__(self, target: Any) -> None:
        """Set the target: a ``SummaryWriter`` or its directory."""
        self._target = target
        self._steps: deque[RecordedStep] = deque(maxlen=_MOST_WAITING)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._of_launches = False

    def open(self, rank: int, of_launches: bool) -> None:
        """Open the file at the first step, when the rank and its device are known."""
        self._of_launches = of_launches
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter

            directory = _directory(self._target) / f"ddpprof-rank-{rank}"
            own_files.make_named_folder(directory)
            path = directory / f"events.out.tfevents.{int(time.time()):010}.{os.getpid()}.ddpprof"
            records = RecordWriter(os.fdopen(own_files.overwrite(path), "wb"))
            records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        except Exception as error:
            _warn(error)
            return
        self._thread = threading.Thread(target=self._write, args=(records,), name="ddpprof-live", daemon=True)
        self._thread.start()

    def add(self, step: RecordedStep) -> None:
        if self._thread is not None:
            self._steps.append(step)  # does not wake the thread, which would cost more than all else here

    def close(self) -> None:
        """Write the waiting steps."""
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._process:
            self._ending.set()
            thread.join(_END_S)

    def _write(self, records: Any) -> None:
        try:
            while not self._ending.wait(_EVERY_S) or self._steps:
                while self._steps:
                    records.write(_event(self._steps.popleft(), self._of_launches).SerializeToString())
                    self._ending.wait(_BETWEEN_S)
                records.flush()
        except Exception as error:
            self._thread = None
            _warn(error)
        finally:
            with suppress(Exception):  # the problem has been reported
                records.close()


def _event(step: RecordedStep, of_launches: bool) -> Any:
    """Return all scalars of a step in one record."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars_of(step, of_launches).items()]
    return Event(wall_time=step.end_ns / 1e9, step=step.number, summary=Summary(value=values))


def _directory(target: Any) -> Path:
    return Path(target.log_dir if hasattr(target, "log_dir") else target)


def _warn(error: Exception) -> None:
    with suppress(Exception):  # stderr may be closed, or its disk full
        hint = " Install it with: pip install 'ddpprof[tensorboard]'." if isinstance(error, ImportError) else ""
        sys.stderr.write(f"ddpprof: no live scalars: {error}.{hint} Training goes on.\n")
