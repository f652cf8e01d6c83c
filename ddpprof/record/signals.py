"""Hold SIGINT and SIGTERM back while files are written, so that a run is not cut off in the middle of its trace."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_signals() -> Iterator[None]:
    """A signal that arrives meanwhile is delivered afterwards. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {}
    try:
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            if signal.getsignal(number) is not None:
                before[number] = signal.signal(number, lambda received, _frame: arrived.append(received))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            os.kill(os.getpid(), number)
