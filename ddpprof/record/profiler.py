"""torch.profiler over the profiled steps, each marked ``ProfilerStep#k`` with ddpprof's own step number.

The time for which training stands still for the profiler is measured, and is part of no step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from ddpprof.record.settings import Settings

_LETS_GO_S = 0.02
"""Gloo's threads end their spans a moment after their collectives: with the profiler gone, in memory that is free."""


class StepProfiler:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._profile: profile | None = None
        self._preparing = False
        self._recording = False
        self._step: record_function | None = None
        self.pause_ns = 0

    @property
    def running(self) -> bool:
        return self._profile is not None

    def owns(self, inner: object) -> bool:
        """Whether `inner`, about to start, is the autograd profiler that this one drives."""
        return self._preparing or (self._profile is not None and self._profile.profiler is inner)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.pause_ns += time.perf_counter_ns() - began

    def prepare(self) -> None:
        """Warm up: buffers are allocated, nothing is kept yet. Raises ``RuntimeError`` if another profiler runs."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # Kineto would write its start and stop to the job's stderr
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        elif torch.xpu.is_available():
            activities.append(ProfilerActivity.XPU)
        if torch.autograd._profiler_enabled():
            raise RuntimeError("the script's own profiler is running")
        with self._paused():
            self._preparing = True
            try:
                self._profile = profile(
                    activities=activities,
                    record_shapes=self._settings.record_shapes,
                    with_stack=self._settings.with_stack,
                    profile_memory=self._settings.profile_memory,
                )
                self._profile.prepare_trace()
            except BaseException:
                self._profile = None
                raise
            finally:
                self._preparing = False

    def begin_step(self, number: int) -> None:
        """A profiled step begins; the first one starts the recording."""
        assert self._profile is not None
        with self._paused():
            if not self._recording:
                self._profile.start_trace()
                self._recording = True
            self._step = record_function(f"ProfilerStep#{number}")
            self._step.__enter__()

    def end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def stop(self, trace: Path | None) -> None:
        """Write to `trace`, or throw away where it is ``None`` or nothing was recorded. Raises ``OSError``."""
        with self._paused():
            self.end_step()
            finished, self._profile = self._profile, None
            if finished is None:
                return
            recorded, self._recording = self._recording, False
            if not recorded:
                finished.start_trace()
            elif dist.is_available() and dist.is_initialized():
                time.sleep(_LETS_GO_S)
            finished.stop_trace()
            if recorded and trace is not None:
                finished.export_chrome_trace(_relative(trace))
                if not trace.exists() or trace.stat().st_size == 0:
                    raise OSError(f"the profiler could not write {trace}")


def _relative(path: Path) -> str:
    """Kineto writes the path that it is given into the trace, which may be shown to others."""
    try:
        return os.path.relpath(path)
    except OSError:  # the working folder is gone
        return str(path)
