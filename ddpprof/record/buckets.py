"""When is each gradient bucket launched, and when is it finished? Asked only in steps of light recording.

Profiled steps have the trace for this, and on an accelerator a future completes long before its kernel does, so there
is nothing here to read: buckets are timed on CPU only. A Python callback at a bucket's end costs more than all other
recording together, since it takes the interpreter's lock from a backend thread; so only a few buckets per step get one,
others in the next step.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

_FINISHES_PER_STEP = 4


class BucketTimes:
    """Launch and finish of the buckets of one DDP module, in the current step."""

    def __init__(self, bucket_numels: list[int]) -> None:
        self._numels = bucket_numels
        self._next = 0
        self._offset = 0
        self.recording = False
        self.launched_ns: dict[int, int] = {}
        self.finished_ns: dict[int, int] = {}

    def begin_step(self, recording: bool) -> None:
        self.recording = recording
        self.launched_ns = {}
        self.finished_ns = {}
        self._offset += _FINISHES_PER_STEP

    @contextmanager
    def harmless(self) -> Iterator[None]:
        """An error in here ends the timing, not the backward pass that it happens in."""
        try:
            yield
        except Exception:
            self.recording = False

    def begin_backward(self) -> None:
        """The reducer starts again at bucket 0."""
        self._next = 0

    def index_of(self, numel: int) -> int | None:
        """The bucket that the reducer launches now: in index order, skipping those that it skips."""
        for index in range(self._next, len(self._numels)):
            if self._numels[index] == numel:
                self._next = index + 1
                return index
        return None

    def launched(self, index: int, now_ns: int, future: torch.futures.Future[Any]) -> None:
        """A bucket's collective was launched at `now_ns`; `future` completes with it."""
        self.launched_ns[index] = now_ns
        finished = self.finished_ns
        num_buckets = len(self._numels)
        if (index - self._offset) % max(1, num_buckets) < _FINISHES_PER_STEP:
            future.add_done_callback(lambda _: finished.__setitem__(index, time.time_ns()))


class TimingProcessGroup(dist.ProcessGroup):
    """Stands in for the real process group inside the reducer, during steps of light recording.

    Hands every all-reduce on to the real group, so the numbers that come out are the real group's. Its backend name
    must be neither ``gloo`` nor ``nccl``: DDP's C++ logger would cast it to their classes.
    """

    def __init__(self, real: dist.ProcessGroup, times: BucketTimes) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]  # missing in torch's stub
        self._real_allreduce = real.allreduce
        self._real_broadcast = real.broadcast
        self._times = times

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        return "ddpprof"

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:  # type: ignore[override]  # as C++ calls it
        now = time.time_ns()
        work = self._real_allreduce(tensors, options)
        with self._times.harmless():
            index = self._times.index_of(tensors[0].numel())
            if index is not None:
                self._times.launched(index, now, work.get_future())
        return work

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> Any:  # type: ignore[override]
        """The reducer broadcasts its new layout when it rebuilds its buckets."""
        return self._real_broadcast(tensors, options)


def timed_hook(hook: Callable[..., Any], times_now: Callable[[], BucketTimes | None]) -> Callable[..., Any]:
    """A user's comm hook that also notes its buckets' times. `times_now` is ``None`` outside light recording."""

    @functools.wraps(hook)
    def timed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        times = times_now()
        if times is None or not times.recording:
            return hook(state, bucket)  # type: ignore[no-any-return]
        now = time.time_ns()
        future = hook(state, bucket)
        with times.harmless():
            times.launched(bucket.index(), now, future)
        return future  # type: ignore[no-any-return]

    return timed
