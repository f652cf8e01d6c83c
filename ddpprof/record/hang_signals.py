"""Handling of signals while the training thread may hang in a call that never returns.

Python runs signal handlers between two of its instructions, and so never while the profiler waits, in its stop, for a
broken device. The system, however, writes a signal's number into a file at once. A thread reads it, gives the call a
moment to return, and otherwise ends the process with that same signal, as if nobody had handled it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress

from ddpprof.record.standby import STANDBY

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
            watch = STANDBY.run(lambda: _watch(reading, before, returned))
        yield
    finally:
        returned.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        wait([] if watch is None else [watch])
        os.close(reading)


def _watch(reading: int, passed_on: int, returned: threading.Event) -> None:
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
