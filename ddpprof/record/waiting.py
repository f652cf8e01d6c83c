"""Waiting for what may never come: a device that hangs, a call that never returns, an interpreter that exits.

A NCCL kernel whose peer has gone never ends, and whoever waits for its device hangs. So another thread waits for the
device, and the training thread waits for that thread with a time limit. Signals can reach it meanwhile. From Python
3.12 on no thread can be started while the interpreter exits, which is when most recordings are completed, so the
threads are started while the script trains.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress

import torch
from torch.nn.parallel import DistributedDataParallel

_NUM_IDLE = 3
"""number of threads that wait: at the exit of a job whose device is stuck, one waits for the device, one writes the
trace, and one watches for signals"""


class Standby:
    """Threads that run functions for others. Each is a daemon, so that the process may end before they do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._num_idle = 0
        self._work: queue.SimpleQueue[tuple[Callable[[], object], Future[None]]] = queue.SimpleQueue()

    def prepare(self) -> None:
        """Start as many threads as may be needed at once. Raises ``RuntimeError`` if the interpreter exits."""
        with self._lock:
            if self._process != os.getpid():  # a fork has no threads but the one that forked
                self._process, self._num_idle, self._work = os.getpid(), 0, queue.SimpleQueue()
            while self._num_idle < _NUM_IDLE:
                threading.Thread(target=self._serve, args=(self._work,), name="ddpprof-standby", daemon=True).start()
                self._num_idle += 1

    def run(self, work: Callable[[], object]) -> Future[None]:
        """Run `work` in one of the threads. Raises ``RuntimeError`` if none is idle while the interpreter exits."""
        with suppress(RuntimeError):
            self.prepare()
        with self._lock:
            if self._num_idle == 0:
                raise RuntimeError("no thread is idle, and none can be started while the interpreter exits")
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
            del work, done, error  # else they live until the next work


STANDBY = Standby()
"""those of this process"""


GRACE_S = 3.0
"""seconds that the call may go on after the signal"""
_GRACE_OF_SCRIPTS_S = 20.0
"""the same for a script with its own handler, which may want to save its work when the call returns"""
_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_end_a_hang() -> Iterator[None]:
    """Guard a call that may never return. Does nothing outside the main thread, or if no thread can watch."""
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
    """End the process, without `signal.signal`, which only works in the main thread, and that hangs."""
    ctypes.CDLL(None).signal(number, None)  # SIG_DFL
    os.kill(os.getpid(), number)


PATIENCE_S = 5.0
"""seconds to wait for a device; more if steps are long"""


class TrainingDevice:
    """The accelerators of one process's DDP modules; none if it trains on the CPU."""

    def __init__(self) -> None:
        self.accelerators: tuple[torch.device, ...] = ()
        self._waiting: Future[None] | None = None
        """the last wait for the devices"""
        self.is_captured = False
        """True while the script captures a CUDA graph, which whoever waits for the device would break"""

    def found(self, devices: Iterable[torch.device]) -> None:
        """Add devices on which training takes place."""
        self.accelerators = tuple(dict.fromkeys([*self.accelerators, *(one for one in devices if one.type != "cpu")]))

    @property
    def type(self) -> str:
        return self.accelerators[0].type if self.accelerators else "cpu"

    @property
    def is_accelerator(self) -> bool:
        return bool(self.accelerators)

    def synchronise(self) -> None:
        """Wait until the devices have finished their work, however long that takes."""
        for device in self.accelerators:
            torch.accelerator.synchronize(device)

    def comes_to_rest(self, patience_s: float) -> bool:
        """Wait as `synchronise` does, but at most `patience_s`.

        Return False if it takes longer, a device fails, or a CUDA graph is being captured.
        """
        if not self.accelerators:
            return True
        if self.is_captured:
            return False
        if self._waiting is not None and not _ends_in_time(self._waiting, patience_s):
            return False  # since an earlier call
        with suppress(RuntimeError):  # none can wait for a device that may be stuck
            self._waiting = STANDBY.run(self.synchronise)
            return _ends_in_time(self._waiting, patience_s) and self._waiting.exception() is None
        return False


def _ends_in_time(waiting: Future[None], patience_s: float) -> bool:
    return bool(wait([waiting], patience_s).done)


def devices_of(ddp: DistributedDataParallel) -> tuple[torch.device, ...]:
    """Return the devices of DDP's own type that hold the module's parameters."""
    kind = ddp.device_type
    held = dict.fromkeys(parameter.device for parameter in ddp.parameters() if parameter.device.type == kind)
    return tuple(held) or (torch.device(kind),)
