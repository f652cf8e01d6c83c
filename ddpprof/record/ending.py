"""Lets signals end the process while the training thread may hang in a call that never returns.

Python runs handlers of signals between two of its instructions, and so never while the profiler's stop waits for a
device that has stopped working. The system, however, writes a signal's number into a file at once. A thread reads it,
gives the call a moment to return, and else ends the process with that very signal, as if nobody had handled it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GRACE_S = 3.0
"""How long the call may go on after the signal."""
_GRACE_OF_SCRIPTS_S = 20.0
"""The same where the script has a handler of its own: it may want to save its work, as soon as the call returns."""
_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_end_a_hang() -> Iterator[None]:
    """Guard a call that may never return. Does nothing outside the main thread, nor where there are no such files."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    returned = threading.Event()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watch = threading.Thread(target=_watch, args=(reading, before, returned), name="ddpprof-signals", daemon=True)
    watch.start()
    try:
        yield
    finally:
        returned.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        watch.join()
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
    """`signal.signal` is for the main thread alone, which hangs."""
    ctypes.CDLL(None).signal(number, None)  # SIG_DFL
    os.kill(os.getpid(), number)
