"""torch.profiler over the profiled steps, each marked ``ProfilerStep#k`` with ddpprof's own step number.

The time for which training pauses for the profiler is measured, and is not part of any step.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from ddpprof.model.backends import ACTIVITIES
from ddpprof.record.device import PATIENCE_S, TrainingDevice
from ddpprof.record.hang_signals import GRACE_S, signals_end_a_hang
from ddpprof.record.settings import Settings
from ddpprof.record.standby import STANDBY

_TOGGLES_S = 0.5
"""seconds to wait for the device before its collection is switched; later it is tried again"""
_LETS_GO_S = 0.02
"""seconds for gloo's threads to end their spans after their collectives, before the profiler's memory is freed"""
_ACTIVITIES = {device: getattr(ProfilerActivity, name) for device, name in ACTIVITIES.items()}
_GPU_FILES = tuple(map(Path, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")))
"""of drivers of NVIDIA, in Windows' subsystem for Linux, and of AMD"""
_TOGGLED = {ProfilerActivity.CPU, *_ACTIVITIES.values()}
if torch.__version__ < "2.8":
    _TOGGLED.remove(ProfilerActivity.XPU)  # torch would report on the job's stderr that it cannot
"""activities that can be toggled; torch reports on the job's stderr when one of these stays as it is"""


class StepProfiler:
    _other: ClassVar[tuple[weakref.ref[Any], object] | None] = None
    """the script's own autograd profiler that warmed up last, and its results of before; of this process"""

    def __init__(self, settings: Settings, device: TrainingDevice) -> None:
        self._settings = settings
        self._device = device
        self._profile: profile | None = None
        self.left: profile | None = None
        """profile that could not be stopped because the device did not come to rest"""
        self._is_busy = False
        self._recording = False
        self._collects = True
        self._stops_collecting: Future[None] | None = None
        """what makes Kineto collect nothing more for `left`, as soon as the device comes to rest"""
        self._step: record_function | None = None
        self.pause_ns = 0

    @property
    def running(self) -> bool:
        return self._profile is not None

    @property
    def has_left_out(self) -> bool:
        """Whether `leave_out` was called in the current step."""
        return not self._collects

    def owns(self, inner: object) -> bool:
        """Return whether `inner`, about to start, is the autograd profiler that this one drives."""
        return self._is_busy or (self._profile is not None and self._profile.profiler is inner)

    def another_prepares(self, inner: object) -> None:
        """Note that the script's own autograd profiler is about to warm up, perhaps not for the first time."""
        StepProfiler._other = weakref.ref(inner), getattr(inner, "kineto_results", None)

    def _other_warms_up(self) -> bool:
        """Return whether it has not ended since: two that warm up share what is prepared, until one of them ends."""
        other, results = self._other or (lambda: None, None)
        inner = other()
        return inner is not None and getattr(inner, "kineto_results", None) is results

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Measure a pause of the training for the profiler."""
        began = time.perf_counter_ns()
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
            self.pause_ns += time.perf_counter_ns() - began

    def prepare(self) -> None:
        """Warm up: allocate buffers without keeping anything. Raises ``RuntimeError`` if another profiler runs."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or Kineto reports its start and stop on the job's stderr
        if torch.autograd._profiler_enabled() or self._other_warms_up():
            raise RuntimeError("the script's own profiler is running")
        with self.paused():
            try:
                self._profile = profile(
                    activities=_activities(self._device.type),
                    record_shapes=self._settings.record_shapes,
                    with_stack=self._settings.with_stack,
                    profile_memory=self._settings.profile_memory,
                )
                with warnings.catch_warnings():  # torch 2.10 warns of a second cycle, although there is only one
                    warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
                    self._profile.prepare_trace()
            except BaseException:
                self._profile = None
                raise

    def begin_step(self, number: int) -> None:
        """Begin a profiled step; the first one starts the recording."""
        assert self._profile is not None
        with self.paused():
            if not self._recording:
                self._profile.start_trace()
                self._recording = True
            self._collect(True)
            self._step = record_function(f"ProfilerStep#{number}")
            self._step.__enter__()

    def end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def leave_out(self) -> bool:
        """Collect nothing for the rest of the step, but profile the next one; return False if that is impossible.

        This may be called between any two instructions of the training thread, but not within a backward pass.
        """
        if self._is_busy or not self._recording or torch._C._current_graph_task_id() != -1:
            return False
        return self._collect(False)

    def _collect(self, on: bool) -> bool:
        """Switch the collection on or off, if nothing is to be waited for; return whether it is as asked.

        Since torch 2.9 Kineto waits for the device if a GPU's activities are among those that are switched
        (``cudaDeviceSynchronize`` in its `toggleCollectionDynamic`), and so makes a context on it.
        """
        if on != self._collects and self._device.comes_to_rest(_TOGGLES_S):
            of_gpu = self._device.is_accelerator or not _has_gpu()  # where none is, torch does not warn
            if _toggle(on, _TOGGLED) if of_gpu else _toggle_cpu(on):
                self._collects = on
        return self._collects == on

    def stop(self, patience_s: float = PATIENCE_S) -> profile | None:
        """Return what was recorded; ``None`` if nothing was, or the device does not come to rest in time."""
        finished, recorded = self._taken_out()
        if finished is None:
            return None
        if not self._device.comes_to_rest(patience_s):
            self._let_go(finished, recorded)
            return None
        self._end(finished, recorded)
        return finished if recorded else None

    def abandon(self) -> None:
        """Release what was recorded without waiting: the job ends in failure, and the device may be stuck."""
        finished, recorded = self._taken_out()
        if finished is not None:
            self._let_go(finished, recorded)

    def _taken_out(self) -> tuple[profile | None, bool]:
        """End the step, and give the profile away; also return whether it has recorded anything."""
        self.end_step()
        finished, self._profile = self._profile, None
        recorded, self._recording = self._recording, False
        return finished, recorded

    def clear_away(self) -> None:
        """Stop what `stop` could not, if the device is at rest now."""
        is_over = self._stops_collecting is None or self._stops_collecting.done()
        if self.left is not None and is_over and self._device.comes_to_rest(_LETS_GO_S):
            left, self.left, self._stops_collecting = self.left, None, None
            self._end(left, recorded=True)

    def _let_go(self, unfinished: profile, recorded: bool) -> None:
        """Make it collect nothing more; a process that ends while a profiler collects would crash."""
        if recorded and self._settings.with_stack and self._device.comes_to_rest(GRACE_S):
            self._end(unfinished, recorded)  # recording of Python's calls cannot be told to collect nothing
        elif recorded:
            self.left = unfinished
            self._collects = not _toggle_cpu(False)
            if self._device.is_accelerator and not self._device.is_captured:
                with suppress(RuntimeError):  # the process ends, and no thread is left to wait for the device
                    self._stops_collecting = STANDBY.run(lambda: _toggle(False, _TOGGLED))

    def _end(self, finished: profile, recorded: bool) -> None:
        with self.paused(), signals_end_a_hang():
            if not recorded:
                finished.start_trace()
            elif dist.is_available() and dist.is_initialized():
                time.sleep(_LETS_GO_S)
            finished.stop_trace()
        self._collects = True


def _toggle(on: bool, activities: set[ProfilerActivity]) -> bool:
    """Switch the collection of these activities; return False if this torch cannot."""
    toggle = getattr(torch._C._autograd, "_toggle_collection_dynamic", None)
    if toggle is not None:
        toggle(on, activities)
    return toggle is not None


def _toggle_cpu(on: bool) -> bool:
    """Switch the collection on the CPU alone, which waits for no device, and keep torch's warning off stderr."""
    with ExitStack() as at_end:
        with suppress(OSError):  # stderr is closed
            kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            at_end.callback(os.close, kept)
            at_end.callback(os.close, nowhere)
            at_end.callback(os.dup2, kept, 2)
            os.dup2(nowhere, 2)
        return _toggle(on, {ProfilerActivity.CPU})


def _has_gpu() -> bool:
    """Return whether this machine has a GPU. Asking torch would initialise its driver."""
    return any(path.exists() for path in _GPU_FILES)


def _activities(device: str) -> list[ProfilerActivity]:
    """Return the activities, without accelerators that this training does not use: they would get a context."""
    module = getattr(torch, device, None)
    if device in _ACTIVITIES and module is not None and module.is_available():
        return [ProfilerActivity.CPU, _ACTIVITIES[device]]
    return [ProfilerActivity.CPU]
