"""The times of each step as scalars for TensorBoard, while training runs: what light recording knows, of every step.

Each rank writes a TensorBoard run of its own, ``ddpprof-rank-N``, into the directory that the user's own writer uses,
so that ranks have the same tags. A thread of its own writes: training only hands over some numbers.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NS_PER_MS = 1e6
_MOST_WAITING = 10_000
"""Steps that wait to be written where the disk does not keep up; then the oldest are left out."""
_EVERY_S = 1.0
_BETWEEN_S = 0.001
"""The writer lets training run after each step that it writes: a tenth of a millisecond of the interpreter's lock."""
_END_S = 10.0
"""How long the end of recording waits for the last steps to be written."""


@dataclass(frozen=True)
class StepTimes:
    """One step by the host's clock; spans are start and end since 1970."""

    number: int
    start_ns: int
    end_ns: int
    forwards: tuple[tuple[int, int], ...]
    optimizers: tuple[tuple[int, int], ...]
    data_ns: int
    of_launches: bool = False
    """an accelerator does the work: the parts say how long the host took to launch theirs"""


def scalars_of(step: StepTimes) -> dict[str, float]:
    """By tag; the tags and the parts are those of the report's native data."""
    total = step.end_ns - step.start_ns
    if not step.forwards:
        return {"ddp/step_ms": total / NS_PER_MS}
    forward = sum(end - start for start, end in step.forwards)
    optimizer = sum(end - start for start, end in step.optimizers)
    backward = 0
    for index, (_, begin) in enumerate(step.forwards):
        following = [start for start, _ in step.optimizers if start >= begin]
        following += [start for start, _ in step.forwards[index + 1 :]]
        backward += max(0, min(following, default=step.end_ns) - begin)
    parts = {
        "forward": forward,
        "backward_and_comm": backward,
        "optimizer": optimizer,
        "data": step.data_ns,
        "other": max(0, total - forward - backward - optimizer - step.data_ns),
    }
    part = "ddp_launches" if step.of_launches else "ddp_step"
    return {"ddp/step_ms": total / NS_PER_MS, **{f"{part}/{name}_ms": ns / NS_PER_MS for name, ns in parts.items()}}


class LiveScalars:
    """Nothing here raises: a problem is said once, and training and recording go on."""

    def __init__(self, target: Any) -> None:
        """`target`: a ``SummaryWriter``, or its directory."""
        self._target = target
        self._steps: deque[StepTimes] = deque(maxlen=_MOST_WAITING)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def open(self, rank: int) -> None:
        """At the first step, when the rank is known."""
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter

            directory = _directory(self._target) / f"ddpprof-rank-{rank}"
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"events.out.tfevents.{int(time.time()):010}.{os.getpid()}.ddpprof"
            records = RecordWriter(path.open("wb"))
            records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        except Exception as error:
            _warn(error)
            return
        self._thread = threading.Thread(target=self._write, args=(records,), name="ddpprof-live", daemon=True)
        self._thread.start()

    def add(self, step: StepTimes) -> None:
        if self._thread is not None:
            self._steps.append(step)  # wakes no thread: that costs more than all else here

    def close(self) -> None:
        """Write what waits."""
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._process:
            self._ending.set()
            thread.join(_END_S)

    def _write(self, records: Any) -> None:
        try:
            while not self._ending.wait(_EVERY_S) or self._steps:
                while self._steps:
                    records.write(_event(self._steps.popleft()).SerializeToString())
                    self._ending.wait(_BETWEEN_S)
                records.flush()
        except Exception as error:
            self._thread = None
            _warn(error)
        finally:
            with suppress(Exception):  # what went wrong has been said
                records.close()


def _event(step: StepTimes) -> Any:
    """All scalars of a step in one record."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars_of(step).items()]
    return Event(wall_time=step.end_ns / 1e9, step=step.number, summary=Summary(value=values))


def _directory(target: Any) -> Path:
    return Path(target.log_dir if hasattr(target, "log_dir") else target)


def _warn(error: Exception) -> None:
    with suppress(Exception):  # stderr may be closed, or its disk full
        hint = " pip install 'ddpprof[tensorboard]'." if isinstance(error, ImportError) else ""
        sys.stderr.write(f"ddpprof: no live scalars: {error}.{hint} Training goes on.\n")
