"""When is each gradient bucket launched, and when is it finished? Only light recording asks.

Profiled steps have the trace for this. On an accelerator a future completes long before its kernel, so buckets are
timed on CPU only. A Python callback at the end of a bucket costs more than all other recording together, since it takes
the interpreter's lock from a backend thread; so only a few buckets per step get one, and others in the next step.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddpprof.model import BucketTimes

_FINISHES_PER_PASS = 4
_LAUNCHES_PER_STEP = 10
"""average number per step; with more buckets, only some of the light steps time them"""


class ReducerTimer:
    """Launch and finish times of the buckets of one DDP module, in the current backward pass."""

    def __init__(self, bucket_numels: list[int]) -> None:
        self._numels = bucket_numels
        self._next = 0
        self._offset = 0
        self._step = 0
        self._every = -(-len(bucket_numels) // _LAUNCHES_PER_STEP) or 1
        self.recording = False
        self.launched_ns: dict[int, int] = {}
        self.finished_ns: dict[int, int] = {}

    def begin_step(self, light: bool) -> bool:
        """Begin a step; return whether its buckets are timed."""
        self.recording = light and self._step % self._every == 0
        self._step += light
        self.begin_backward()
        return self.recording

    def begin_backward(self) -> None:
        """Start again at bucket 0, as the reducer does."""
        self._next = 0
        self._offset += _FINISHES_PER_PASS if self.launched_ns else 0
        self.launched_ns = {}
        self.finished_ns = {}

    def times(self) -> tuple[BucketTimes, ...]:
        """Return launch and finish of each timed bucket, ascending by index."""
        if not self.recording:
            return ()
        finished = dict(self.finished_ns)
        launched = sorted(self.launched_ns.items())
        return tuple(BucketTimes(index, launched_ns, finished.get(index)) for index, launched_ns in launched)

    def index_of(self, numel: int) -> int | None:
        """Return the bucket that the reducer launches now; the reducer goes in index order, and may skip some."""
        for index in range(self._next, len(self._numels)):
            if self._numels[index] == numel:
                self._next = index + 1
                return index
        return None

    def launched(self, index: int | None, now_ns: int, future: Callable[[], torch.futures.Future[Any]]) -> None:
        """Note a bucket's collective, launched at `now_ns`; its future completes with it.

        An error in here ends the timing, but not the surrounding backward pass.
        """
        if index is None:
            return
        try:
            self.launched_ns[index] = now_ns
            if (index - self._offset) % len(self._numels) < _FINISHES_PER_PASS:
                finished = self.finished_ns
                future().add_done_callback(lambda _: finished.__setitem__(index, time.time_ns()))
        except Exception:
            self.recording = False


class TimingProcessGroup(dist.ProcessGroup):
    """Replacement for the real process group inside the reducer, during steps of light recording.

    It passes every all-reduce on to the real group, so the results are the real group's. Its backend name must not be
    ``gloo`` or ``nccl``, because DDP's C++ logger would cast it to their classes.
    """

    def __init__(self, real: dist.ProcessGroup, times: ReducerTimer) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]  # missing in torch's stub
        self._real_allreduce = real.allreduce
        self._real_broadcast = real.broadcast
        self._times = times

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        return "ddpprof"

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:  # type: ignore[override]  # as C++ calls it
        now = time.time_ns()
        work = self._real_allreduce(tensors, options)
        self._times.launched(self._times.index_of(tensors[0].numel()), now, work.get_future)
        return work

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> Any:  # type: ignore[override]
        """Broadcast for the reducer, which sends its new layout when it rebuilds its buckets."""
        return self._real_broadcast(tensors, options)


def timed_hook(hook: Callable[..., Any], times_now: Callable[[], ReducerTimer | None]) -> Callable[..., Any]:
    """Return the user's comm hook with timing of its buckets. `times_now` is ``None`` outside light recording."""

    @functools.wraps(hook)
    def timed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        times = times_now()
        if times is None or not times.recording:
            return hook(state, bucket)  # type: ignore[no-any-return]
        now = time.time_ns()
        future = hook(state, bucket)
        times.launched(bucket.index(), now, lambda: future)
        return future  # type: ignore[no-any-return]

    return timed
