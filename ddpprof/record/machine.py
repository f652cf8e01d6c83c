"""Measure the memory, CPU limits and devices of this process, and wait for devices with a time limit.

Totals count from the start of the process. Nothing here creates a CUDA context or resets a peak.

If another rank has died, an NCCL kernel may never end, and a thread that waits for the device hangs. The training
thread must still handle signals. Therefore, a helper thread waits for the device, and the training thread waits for the
helper thread with a time limit. Most recordings are completed while the interpreter exits. From Python 3.12 on, no
thread can be started at that point, so the helper threads are started during training.
"""

from __future__ import annotations

import ctypes
import functools
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpprof.linux_files import number_in, own_groups, stat_of
from ddpprof.model import UNKNOWN, DeviceMemory, Memory, MemoryPeak
from ddpprof.model.backends import WITH_MEMORY
from ddpprof.record.events import Listener

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NOT_TOLD = (RuntimeError, KeyError)
"""errors of a failing device, or of an allocator without statistics; after such an error, ddpprof leaves out only a
part of the record
"""
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryNotes:
    """Measures the memory of the process and of the devices on which it trains."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._torch: Any = torch.cuda
        """PyTorch's module for the accelerator, such as `torch.cuda`"""

    def owns(self, devices: Iterable[torch.device]) -> None:
        """Add devices on which the process trains."""
        for device in devices:
            if device.type in WITH_MEMORY and device.index is not None:
                self._own.add(device.index)
                self._torch = getattr(torch, device.type)

    def sample(self) -> Memory:
        """Return the current and peak memory of the process and of its own devices."""
        rss, peak = resident_bytes(), peak_resident_bytes()
        if rss is not None:
            peak = max(rss, peak)  # the kernel does not update its peak continuously
        return Memory(rss, peak, self._own_devices())

    def peaks(self) -> Iterator[tuple[int | None, int]]:
        """Yield the peak of the host's memory (``None``) and of each own device, in bytes."""
        yield None, peak_resident_bytes()
        yield from ((one.index, one.peak_bytes) for one in self._own_devices())

    def _own_devices(self) -> tuple[DeviceMemory, ...]:
        try:
            return tuple(DeviceMemory(device, *_allocated_bytes(self._torch, device)) for device in sorted(self._own))
        except _NOT_TOLD:
            return ()

    def devices(self) -> tuple[DeviceMemory, ...]:
        """Return a description of every device on which the process has memory or a context."""
        if not self._torch.is_initialized():
            return ()
        try:
            number = self._torch.device_count()
            held = [one for one in range(number) if one in self._own or _holds_memory(self._torch, one)]
            return tuple(_describe_device(self._torch, one, one in self._own) for one in held)
        except _NOT_TOLD:
            return ()


class PeakNotes(Listener):
    """Records in which part of a step the memory peaks grow. It is active only in the first steps of the job."""

    def __init__(self, memory: MemoryNotes) -> None:
        self._memory = memory
        self._found: dict[int | None, MemoryPeak] = {}

    def facts(self) -> dict[str, Any]:
        """Return the recorded peaks, as fields of the `Record`."""
        return {"peaks": tuple(self._found.values())}

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        self._grew_in("other")

    def backward_begins(self, loss: Any) -> None:
        self._grew_in("forward")

    def backward_ends(self) -> None:
        self._grew_in("backward")

    def optimizer_begins(self, optimizer: Any) -> None:
        self._grew_in("other")

    def optimizer_ends(self, optimizer: Any) -> None:
        self._grew_in("optimizer")

    def _grew_in(self, part: str) -> None:
        for device, peak in self._memory.peaks():
            before = self._found.get(device)
            if before is None or peak > _GROWS * before.peak_bytes:
                self._found[device] = MemoryPeak(device, part, peak)


_GROWS = 1.01
"""a peak is recorded again if it is more than this many times the last recorded peak"""


def resident_bytes() -> int | None:
    """Return the process's resident memory in bytes; ``None`` if the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def peak_resident_bytes() -> int:
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * _MAXRSS_UNIT


def _allocated_bytes(module: Any, device: int) -> tuple[int, int, int]:
    """Return the bytes allocated to tensors, their peak, and the bytes reserved by the allocator."""
    stats = module.memory_stats_as_nested_dict(device)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return allocated["current"], allocated["peak"], reserved["current"]


def _holds_memory(module: Any, device: int) -> bool:
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None) if module is torch.cuda else None
    if has_context is not None:
        return bool(has_context(device))
    return _allocated_bytes(module, device)[2] > 0


def _describe_device(module: Any, device: int, is_own: bool) -> DeviceMemory:
    properties = module.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    uuid = None if uuid is None else str(uuid)
    return DeviceMemory(device, *_allocated_bytes(module, device), is_own, uuid, properties.total_memory)


_PROC = Path("/proc/self")
_THROTTLED_UNITS_NS = {"throttled_usec": 1000, "throttled_time": 1}
"""name of the throttling counter (first for cgroup v2, then for v1) → its unit in ns"""
_MOST_THREADS = 256
_MOST_CORES = 64


def queued_ns() -> int:
    """Return the total time, in ns, that threads of this process were runnable but not running."""
    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(_PROC / "task")[:_MOST_THREADS]
    known = [queued for thread in threads if (queued := thread_queued_ns(thread)) != UNKNOWN]
    return sum(known) if known else UNKNOWN


def thread_queued_ns(thread: str) -> int:
    """Return the total time, in ns, that a thread of this process was runnable but not running.

    `thread`: ID of the thread in the operating system.
    """
    with suppress(OSError, ValueError, IndexError):  # the thread has ended, or the kernel does not report this
        return int((_PROC / "task" / thread / "schedstat").read_text(encoding="ascii").split()[1])
    return UNKNOWN


class Throttling:
    """Sums the time that cgroup CPU limits throttle this process, even if the process is moved to another cgroup."""

    def __init__(self) -> None:
        self._groups: str | None = None
        self._of_earlier_groups = self._total = 0

    def total_ns(self) -> int:
        groups = _own_groups()
        where = _throttling(groups)
        throttled = None if where is None else number_in(*where)
        if where is None or throttled is None:
            return UNKNOWN
        throttled *= _THROTTLED_UNITS_NS[where[1]]
        if self._groups not in (None, groups):
            self._of_earlier_groups = self._total - throttled
        self._groups, self._total = groups, self._of_earlier_groups + throttled
        return self._total


throttled_ns = Throttling().total_ns


def _own_groups() -> str:
    """Return this process's cgroups as listed by the kernel. Other processes may change them."""
    with suppress(OSError):
        return (_PROC / "cgroup").read_text(encoding="utf-8")
    return ""


@functools.lru_cache(maxsize=8)
def _throttling(_groups: str) -> tuple[Path, str] | None:
    """Return the file with the throttling counter, and the counter's name; ``None`` if there is none."""
    for group in own_groups("cpu"):
        for name in _THROTTLED_UNITS_NS:
            if number_in(group / "cpu.stat", name) is not None:
                return group / "cpu.stat", name
    return None


def major_faults() -> int:
    """Return the number of page faults that required reading from a disk."""
    found = stat_of(_PROC)
    return UNKNOWN if found is None else found.num_paged_in


def core_khz() -> int:
    """Return the mean clock rate, in kHz, of the cores that this process may use."""
    try:
        cores = sorted(os.sched_getaffinity(0))[:_MOST_CORES]
        rates = [
            int(Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").read_text(encoding="ascii"))
            for core in cores
        ]
        return sum(rates) // len(rates)
    except (OSError, ValueError, AttributeError, ZeroDivisionError):
        return UNKNOWN


_NUM_IDLE = 3
"""number of threads that are started in advance. If a job with a stuck device exits, one thread waits for the device,
one writes the trace, and one watches for signals
"""


class Standby:
    """Pool of helper threads. They are daemon threads, so the process does not wait for them when it exits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._num_idle = 0
        self._work: queue.SimpleQueue[tuple[Callable[[], object], Future[None]]] = queue.SimpleQueue()

    def prepare(self) -> None:
        """Start the maximum number of threads that may be needed concurrently.

        Raises ``RuntimeError`` if the interpreter is exiting.
        """
        with self._lock:
            if self._process != os.getpid():  # after a fork, only the thread that called fork exists
                self._process, self._num_idle, self._work = os.getpid(), 0, queue.SimpleQueue()
            while self._num_idle < _NUM_IDLE:
                threading.Thread(target=self._serve, args=(self._work,), name="ddpprof-standby", daemon=True).start()
                self._num_idle += 1

    def run(self, work: Callable[[], object]) -> Future[None]:
        """Run `work` in one of the threads.

        Raises ``RuntimeError`` if no thread is idle while the interpreter is exiting.
        """
        with suppress(RuntimeError):
            self.prepare()
        with self._lock:
            if self._num_idle == 0:
                raise RuntimeError("no helper thread is idle, and none can be started while the interpreter exits")
            self._num_idle -= 1
        done: Future[None] = Future()
        self._work.put((work, done))
        return done

    def _serve(self, requests: queue.SimpleQueue[tuple[Callable[[], object], Future[None]]]) -> None:
        while True:
            work, done = requests.get()
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            with self._lock:
                self._num_idle += 1
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
            del work, done, error  # otherwise these objects stay alive until the next work item


STANDBY = Standby()
"""threads of this process that wait for work"""


GRACE_S = 3.0
"""seconds that a call inside `signals_end_a_hang` may continue after a signal before the process is ended"""
_GRACE_OF_SCRIPTS_S = 20.0
"""longer time limit if the script handles the signal itself, because the script may save its work when the call returns
"""
_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_end_a_hang() -> Iterator[None]:
    """End the process if SIGINT or SIGTERM arrives and the block, which may hang, does not end soon afterwards.

    This does nothing outside the main thread, or if no helper thread is available.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    returned = threading.Event()
    watch: Future[None] | None = None
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        with suppress(RuntimeError):
            watch = STANDBY.run(lambda: _watch_signals(reading, before, returned))
        yield
    finally:
        returned.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        wait([] if watch is None else [watch])
        os.close(reading)


def _watch_signals(reading: int, passed_on: int, returned: threading.Event) -> None:
    while numbers := os.read(reading, 64):
        if passed_on >= 0:
            with suppress(OSError):
                os.write(passed_on, numbers)
        asked = [number for number in numbers if number in _ENDING]
        if asked and not returned.wait(_grace_s(asked[0])):
            _end_with(asked[0])


def _grace_s(number: int) -> float:
    is_pythons = signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    return GRACE_S if is_pythons else _GRACE_OF_SCRIPTS_S


def _end_with(number: int) -> None:
    """End the process. `signal.signal` cannot be used: it works only in the main thread, and that thread hangs."""
    ctypes.CDLL(None).signal(number, None)  # SIG_DFL
    os.kill(os.getpid(), number)


PATIENCE_S = 5.0
"""ddpprof waits for a device for at least this many seconds; it waits longer if steps are long"""


class TrainingDevice:
    """The accelerators on which this process trains. There are none if it trains on CPU."""

    def __init__(self) -> None:
        self.accelerators: tuple[torch.device, ...] = ()
        self._waiting: Future[None] | None = None
        """the most recent wait for the devices; this wait may not have ended yet"""
        self.is_captured = False
        """True while the script captures a CUDA graph; waiting for the device would break the capture"""

    def found(self, devices: Iterable[torch.device]) -> None:
        """Add the accelerators among `devices`."""
        self.accelerators = tuple(dict.fromkeys([*self.accelerators, *(one for one in devices if one.type != "cpu")]))

    @property
    def type(self) -> str:
        return self.accelerators[0].type if self.accelerators else "cpu"

    @property
    def is_accelerator(self) -> bool:
        return bool(self.accelerators)

    def synchronize(self) -> None:
        """Wait until the devices have finished their work, without a time limit."""
        for device in self.accelerators:
            torch.accelerator.synchronize(device)

    def comes_to_rest(self, patience_s: float) -> bool:
        """Wait until the devices are idle, but at most `patience_s` seconds. Return True if they are idle.

        Returns False if the time is up, a device fails, or a CUDA graph is being captured.
        """
        if not self.accelerators:
            return True
        if self.is_captured:
            return False
        if self._waiting is not None and not _ends_in_time(self._waiting, patience_s):
            return False  # the wait of an earlier call has still not ended
        with suppress(RuntimeError):  # no helper thread is available
            self._waiting = STANDBY.run(self.synchronize)
            return _ends_in_time(self._waiting, patience_s) and self._waiting.exception() is None
        return False


def _ends_in_time(waiting: Future[None], patience_s: float) -> bool:
    return bool(wait([waiting], patience_s).done)


def devices_of(ddp: DistributedDataParallel) -> tuple[torch.device, ...]:
    """Return the devices of DDP's device type that hold the module's parameters."""
    kind = ddp.device_type
    held = dict.fromkeys(parameter.device for parameter in ddp.parameters() if parameter.device.type == kind)
    return tuple(held) or (torch.device(kind),)
