"""Run torch.profiler over the profiled steps, each marked ``ProfilerStep#k`` with ddpprof's step number.

The times at which training pauses for the profiler are measured and are not part of any step. If a step does not end
for a long time, for example during validation or while a CUDA graph is replayed, the profiler stops collecting until
the next step. This limits its memory use. Such a step does not count as profiled, and the next step is profiled
instead.

A trace may take hundreds of megabytes, and all ranks may write to the same network folder at the same time. A separate
thread therefore writes the trace. PyTorch holds Python's global interpreter lock while it writes the JSON, so training
still pauses, but not while the trace is compressed or copied. If the run directory is not on the node's local disk, the
thread first writes the trace to the local disk and then writes a compressed copy to the run directory. If the run
directory is on the local disk, the file is only renamed, and is compressed after training.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from ddpprof import own_files, rundir
from ddpprof.model.backends import ACTIVITIES
from ddpprof.own_files import choose_temporary_directory, scratch_folder
from ddpprof.record.machine import GRACE_S, PATIENCE_S, STANDBY, TrainingDevice, resident_bytes, signals_end_a_hang
from ddpprof.record.settings import Settings

_LOOKS_EVERY_S = 0.01
_TRIES_AGAIN_S = 0.05
_USUAL_FACTOR = 5
"""ddpprof may stop the profiler during a step that takes more than this many times as long as the longest
earlier step
"""
_MEMORY_OF_UNUSUAL_BYTES = 8 << 20
"""ddpprof stops the profiler during an unusually long step if memory has grown by this many bytes; stopping takes
several times as much memory
"""
_LONG_S = 10.0
"""ddpprof stops the profiler in an unusually long step after this many seconds even if memory has not grown"""


class Bounds:
    """Limits the time and memory of all profiled steps together, and of a single step that takes too long."""

    def __init__(self, leave_out: Callable[[], bool], most_seconds: float, most_bytes: int) -> None:
        """Set the limits. `leave_out`: stops collecting; it is called in the main thread until it returns True."""
        self._leave_out = leave_out
        self._most_s = most_seconds
        self._most_bytes = most_bytes
        self._longest_s = {True: 0.0, False: 0.0}
        """longest step in seconds, by key: False → of the skipped initial steps, True → of all other steps"""
        self._step_began = 0.0
        self._bytes_at_step = 0
        self._began: float | None = None
        self._bytes_at_begin = 0
        self._over = threading.Event()
        self._in_step = False

    @property
    def longest_s(self) -> float:
        """Duration in seconds of the longest step so far.

        Initial skipped steps take longer, so they count only if no other step has ended.
        """
        return self._longest_s[True] or self._longest_s[False]

    def step_ends(self, usual: bool) -> None:
        """Record the end of a step, profiled or not. `usual`: False for an initial skipped step."""
        self._in_step = False
        if self._step_began:
            self._longest_s[usual] = max(self._longest_s[usual], time.monotonic() - self._step_began)

    def step_begins(self, profiled: bool) -> None:
        self._step_began = time.monotonic()
        if not profiled:
            return
        self._bytes_at_step = resident_bytes() or 0
        if self._began is None:
            self._began, self._bytes_at_begin = self._step_began, self._bytes_at_step
            threading.Thread(target=self._watch, name="ddpprof-bounds", daemon=True).start()
        self._in_step = True

    def end(self) -> None:
        """Record that the profiled steps have ended."""
        self._in_step = False
        self._over.set()

    def exceeded(self) -> str | None:
        """Return a description of the limit that the profiled steps have exceeded, or ``None``."""
        if self._began is None:
            return None
        if time.monotonic() - self._began > self._most_s:
            return f"the profiled steps took more than {self._most_s:g} s (--most-seconds)"
        if (resident_bytes() or 0) - self._bytes_at_begin > self._most_bytes:
            return (
                f"the memory of the process grew by more than {self._most_bytes >> 20} MiB during the profiled steps "
                "(--most-memory)"
            )
        return None

    def _step_is_unusual(self) -> bool:
        took_s = time.monotonic() - self._step_began
        grew = (resident_bytes() or 0) - self._bytes_at_step
        return took_s > _USUAL_FACTOR * self.longest_s and (grew > _MEMORY_OF_UNUSUAL_BYTES or took_s > _LONG_S)

    def _watch(self) -> None:
        while not self._over.wait(_LOOKS_EVERY_S):
            step = self._step_began
            if self._in_step and (self._step_is_unusual() or self.exceeded() is not None):
                while self._in_step and step == self._step_began and not self._over.is_set():
                    if self._left_out_in_main_thread():
                        self._in_step = False
                    self._over.wait(_TRIES_AGAIN_S)

    def _left_out_in_main_thread(self) -> bool:
        answer: Future[bool] = Future()
        _asked.append((self._leave_out, answer))
        ctypes.pythonapi.Py_AddPendingCall(_RUN_ASKED, None)
        try:
            return answer.result(1.0)
        except TimeoutError:
            return False


_asked: list[tuple[Callable[[], bool], Future[bool]]] = []
"""functions that the main thread should call, and futures for their results"""


def _run_asked(_nothing: object) -> int:
    while _asked:
        function, answer = _asked.pop()
        answer.set_result(function())
    return 0


_RUN_ASKED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_asked)
"""function pointer that must exist until the interpreter exits, because the interpreter may call it late"""


_gzip_open: Any
try:
    from isal.igzip import open as _gzip_open
except ImportError:
    _gzip_open = gzip.open

_ASKS_EVERY_S = 0.1
_LOCAL_DISK_BYTES = 4 << 30
"""the trace is written to the node's local disk first if at least this many bytes are free on that disk; otherwise,
directly to the run directory
"""


class TraceFile:
    """Writes ``rank-N.trace.json.gz`` and its intermediate files."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._plain = directory / rundir.plain_trace_file(rank)
        self._compressed = directory / rundir.trace_file(rank)
        self._writing: Future[None] | None = None
        self.pauses: list[tuple[int, int]] = []
        """beginning and end of the time in which PyTorch holds the global interpreter lock to write the JSON"""

    def write(self, recorded: profile) -> None:
        """Start writing the trace. Errors are raised by `finish`."""
        self._begin(lambda: self._export(recorded))

    def finish(self, patience_s: float, asked_to_end: Sequence[int]) -> None:
        """Wait at the end of training until the trace is written, but at most `patience_s` after a termination signal.

        `asked_to_end`: signals that have arrived so far; the list may grow. Raises ``OSError``.
        """
        self.wait(patience_s, asked_to_end)
        if self._writing is None and self._plain.exists():
            self._begin(lambda: self._compress(self._plain))
            self.wait(patience_s, asked_to_end)

    def _begin(self, work: Callable[[], None]) -> None:
        try:
            self._writing = STANDBY.run(work)
        except RuntimeError:  # the process is exiting, so nothing else is running
            work()

    def wait(self, patience_s: float, asked_to_end: Sequence[int]) -> None:
        """Wait for a write in progress. Takes the same arguments as `finish`."""
        deadline = None
        while self._writing is not None:
            if wait([self._writing], _ASKS_EVERY_S).done:
                written, self._writing = self._writing, None
                written.result()
            elif deadline is None and asked_to_end:
                deadline = time.monotonic() + patience_s
            elif deadline is not None and time.monotonic() > deadline:
                return

    def _export(self, recorded: profile) -> None:
        with ExitStack() as used:
            folder = self._plain.parent
            if _lies_elsewhere(folder):
                with suppress(OSError):
                    folder = used.enter_context(scratch_folder())
            self._export_into(folder, recorded)

    def _export_into(self, folder: Path, recorded: profile) -> None:
        part = folder / own_files.part_name(self._plain.name)
        began_ns = time.perf_counter_ns()
        try:
            recorded.export_chrome_trace(_relative(part))
            self.pauses.append((began_ns, time.perf_counter_ns()))
            if not part.exists() or part.stat().st_size == 0:
                raise OSError(f"the profiler could not write {part}")
            own_files.narrow(part)  # Kineto creates it
            if folder == self._plain.parent:
                part.replace(self._plain)
            else:
                self._compress(part)
        finally:
            for left in (part, part.with_name(f"{part.name}.tmp")):  # Kineto leaves the second file if it fails
                own_files.remove_file(left)

    def _compress(self, plain: Path) -> None:
        with (
            own_files.whole_file(self._compressed) as part,
            plain.open("rb") as source,
            _gzip_open(part, "wb", compresslevel=1) as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        own_files.remove_file(plain)


def _lies_elsewhere(directory: Path) -> bool:
    """Return True if `directory` is not on the disk for temporary files, and that disk has enough space for a trace."""
    try:
        local = choose_temporary_directory()
        return local.stat().st_dev != directory.stat().st_dev and shutil.disk_usage(local).free >= _LOCAL_DISK_BYTES
    except OSError:
        return False


def _relative(path: Path) -> str:
    """Return the relative path. Kineto writes the path into the trace, and users may share the trace."""
    try:
        return os.path.relpath(path)
    except OSError:  # the working folder no longer exists
        return str(path)


_TOGGLES_S = 0.5
"""seconds to wait until the device is idle, before ddpprof turns collection on or off; if it is not idle by then,
ddpprof tries again later
"""
_LETS_GO_S = 0.02
"""seconds to wait for gloo's threads to end their profiler ranges before the profiler's memory is freed"""
_ACTIVITIES = {device: getattr(ProfilerActivity, name) for device, name in ACTIVITIES.items()}
_GPU_FILES = tuple(map(Path, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")))
"""device files of NVIDIA's driver, of the Windows Subsystem for Linux, and of AMD's driver"""
_TOGGLED = {ProfilerActivity.CPU, *_ACTIVITIES.values()}
if torch.__version__ < "2.8":
    _TOGGLED.remove(ProfilerActivity.XPU)  # these versions cannot toggle XPU and would print a warning to stderr
"""profiler activities that can be turned on and off; PyTorch prints a warning if an activity is already in the
requested state
"""


class StepProfiler:
    """Runs torch.profiler over the profiled steps of one process."""

    _other: ClassVar[tuple[weakref.ref[Any], object] | None] = None
    """the script's autograd profiler that was the last to begin its warm-up, and the results that it had then"""

    def __init__(self, settings: Settings, device: TrainingDevice) -> None:
        self._settings = settings
        self._device = device
        self._profile: profile | None = None
        self.left: profile | None = None
        """profile that ddpprof could not stop yet, because the device did not become idle"""
        self._is_busy = False
        self._recording = False
        self._collects = True
        self._stops_collecting: Future[None] | None = None
        """pending call that waits until the device is idle, and then stops Kineto's collection for `left`"""
        self._step: record_function | None = None
        self.pauses: list[tuple[int, int]] = []
        """beginning and end, in ns of ``time.perf_counter_ns``, of each pause of training for the profiler"""

    @property
    def running(self) -> bool:
        return self._profile is not None

    @property
    def has_left_out(self) -> bool:
        """Whether `leave_out` was called in the current step."""
        return not self._collects

    def owns(self, inner: object) -> bool:
        """Return True if the autograd profiler `inner`, which is about to start, belongs to this object."""
        return self._is_busy or (self._profile is not None and self._profile.profiler is inner)

    def another_prepares(self, inner: object) -> None:
        """Record that the script's own autograd profiler `inner` is about to warm up. This may happen repeatedly."""
        StepProfiler._other = weakref.ref(inner), getattr(inner, "kineto_results", None)

    def _other_warms_up(self) -> bool:
        """Return True if the script's own profiler has warmed up but not ended.

        In Kineto, all profilers that have warmed up share their prepared state until one of them ends.
        """
        other, results = self._other or (lambda: None, None)
        inner = other()
        return inner is not None and getattr(inner, "kineto_results", None) is results

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Add the time that the block takes to `pauses`."""
        began = time.perf_counter_ns()
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
            self.pauses.append((began, time.perf_counter_ns()))

    def prepare(self) -> None:
        """Warm up the profiler without keeping data. Raises ``RuntimeError`` if another profiler is running."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise Kineto prints its start and stop to stderr
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
                with warnings.catch_warnings():  # torch 2.10 warns about a second cycle, although there is only one
                    warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
                    self._profile.prepare_trace()
            except BaseException:
                self._profile = None
                raise

    def begin_step(self, number: int) -> None:
        """Begin a profiled step. The first profiled step starts the trace."""
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
        """Stop collecting for the rest of this step.

        Returns False if this is not possible now, for example in a backward pass.

        This may be called between any two instructions of the training thread.
        """
        if self._is_busy or not self._recording or torch._C._current_graph_task_id() != -1:
            return False
        return self._collect(False)

    def _collect(self, on: bool) -> bool:
        """Switch collection on or off unless the device is busy. Return True if it is now in the requested state.

        Since torch 2.9, Kineto waits for the device (``cudaDeviceSynchronize`` in `toggleCollectionDynamic`) if GPU
        activities are toggled, and thereby creates a context on the device.
        """
        if on != self._collects and self._device.comes_to_rest(_TOGGLES_S):
            of_gpu = self._device.is_accelerator or not _has_gpu()  # without a GPU, torch prints no warning
            if _toggle(on, _TOGGLED) if of_gpu else _toggle_cpu(on):
                self._collects = on
        return self._collects == on

    def stop(self, patience_s: float = PATIENCE_S) -> profile | None:
        """Stop the profiler and return its profile.

        Returns ``None`` if no step was profiled, or if the device does not become idle within `patience_s`.
        """
        finished, recorded = self._taken_out()
        if finished is None:
            return None
        if not self._device.comes_to_rest(patience_s):
            self._let_go(finished, recorded)
            return None
        self._end(finished, recorded)
        return finished if recorded else None

    def abandon(self) -> None:
        """Stop collecting without a trace, because the job has failed and the device may be stuck."""
        finished, recorded = self._taken_out()
        if finished is not None:
            self._let_go(finished, recorded)

    def _taken_out(self) -> tuple[profile | None, bool]:
        """End the step, and remove the profile from this object.

        Return the profile, and whether its trace has started.
        """
        self.end_step()
        finished, self._profile = self._profile, None
        recorded, self._recording = self._recording, False
        return finished, recorded

    def clear_away(self) -> None:
        """If `stop` could not stop the profile and the device is now idle, stop the profile."""
        is_over = self._stops_collecting is None or self._stops_collecting.done()
        if self.left is not None and is_over and self._device.comes_to_rest(_LETS_GO_S):
            left, self.left, self._stops_collecting = self.left, None, None
            self._end(left, recorded=True)

    def _let_go(self, unfinished: profile, recorded: bool) -> None:
        """Stop collecting, because a process would crash if it exited while the profiler collects data."""
        if recorded and self._settings.with_stack and self._device.comes_to_rest(GRACE_S):
            self._end(unfinished, recorded)  # recording of Python calls cannot be toggled
        elif recorded:
            self.left = unfinished
            self._collects = not _toggle_cpu(False)
            if self._device.is_accelerator and not self._device.is_captured:
                with suppress(RuntimeError):  # the process is exiting, and no helper thread is available
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
    """Toggle collection of these activities. Return False if this torch version does not support it."""
    toggle = getattr(torch._C._autograd, "_toggle_collection_dynamic", None)
    if toggle is not None:
        toggle(on, activities)
    return toggle is not None


def _toggle_cpu(on: bool) -> bool:
    """Toggle collection on the CPU only, without waiting for the device. Suppress torch's warning on stderr."""
    with ExitStack() as at_end:
        with suppress(OSError):  # stderr is closed
            kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            at_end.callback(os.close, kept)
            at_end.callback(os.close, nowhere)
            at_end.callback(os.dup2, kept, 2)
            os.dup2(nowhere, 2)
        return _toggle(on, {ProfilerActivity.CPU})


def _has_gpu() -> bool:
    """Return True if this machine has a GPU. Unlike torch, this does not initialize the GPU's driver."""
    return any(path.exists() for path in _GPU_FILES)


def _activities(device: str) -> list[ProfilerActivity]:
    """Return the activities to profile. Profiling an unused accelerator would create a context on it."""
    module = getattr(torch, device, None)
    if device in _ACTIVITIES and module is not None and module.is_available():
        return [ProfilerActivity.CPU, _ACTIVITIES[device]]
    return [ProfilerActivity.CPU]
