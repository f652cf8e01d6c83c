"""Context managers that defer signals, or handle them temporarily.

`record.launch` forwards signals from ``ddpprof trace`` to the job.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_signals(numbers: Iterable[int] = (signal.SIGINT, signal.SIGTERM)) -> Iterator[list[int]]:
    """Defer signals until the block ends, and yield a list to which arriving signals are added.

    Does nothing outside the main thread.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    before = {}
    try:
        for number in map(int, numbers):
            if signal.getsignal(number) is not None:
                before[number] = signal.signal(number, lambda received, _frame: arrived.append(received))
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            os.kill(os.getpid(), number)


@contextmanager
def handled_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object] | int) -> Iterator[None]:
    """Handle these signals with `handler` until the block ends."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextmanager
def children_without_ctrl_c() -> Iterator[None]:
    """Block SIGINT for child processes started in the block, because this process ends them itself on Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
