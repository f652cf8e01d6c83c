"""`ddpprof.hooks`: a DDP communication hook that measures the duration of each bucket's all-reduce.

    timer = ddpprof.hooks.BucketTimer()
    ddp.register_comm_hook(timer, ddpprof.hooks.timed_allreduce_hook)
    … after some steps:
    for bucket in timer.take(): print(bucket.index, bucket.num_bytes, bucket.duration_ns)

Gradients are bitwise identical to DDP's gradients without a hook, because the hook also multiplies by ``1 /
world_size`` before the sum. DDP inspects the hook's annotations, so this file must not use ``from __future__ import
annotations``.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

__all__ = ["BucketTimer", "TimedBucket", "timed_allreduce_hook"]


@dataclass(frozen=True, slots=True)
class TimedBucket:
    """One all-reduce of one bucket. Times are in ns since 1970, by the host's clock.

    On an accelerator, the all-reduce counts as finished once it has been launched on the device.
    """

    index: int
    num_bytes: int
    launched_ns: int
    finished_ns: int

    @property
    def duration_ns(self) -> int:
        return self.finished_ns - self.launched_ns


class BucketTimer:
    """State of `timed_allreduce_hook`: collects the timed buckets.

    Args:
        process_group: the process group passed to DDP; ``None`` for the default group.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self.process_group = process_group
        self._finished: list[TimedBucket] = []

    def take(self) -> list[TimedBucket]:
        """Return the buckets that have finished since the last call, in the order in which they finished."""
        taken, self._finished = self._finished, []
        return taken

    def add(self, bucket: TimedBucket) -> None:
        """Add a finished bucket."""
        self._finished.append(bucket)


def timed_allreduce_hook(state: BucketTimer, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over all ranks, as DDP does without a hook, and record when it is launched and finished."""
    buffer, index = bucket.buffer(), bucket.index()
    num_bytes = buffer.numel() * buffer.element_size()
    buffer.mul_(1 / dist.get_world_size(state.process_group))
    launched = time.time_ns()
    work = dist.all_reduce(buffer, group=state.process_group, async_op=True)
    assert work is not None

    def finish(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        state.add(TimedBucket(index, num_bytes, launched, time.time_ns()))
        return future.value()[0]

    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(finish)
    return averaged
