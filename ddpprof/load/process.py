"""How a process that was started for reading begins, and ends with the one that started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ddpprof.load.heap import give_back_large_arrays

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


_WAITS_FOR_PARENT = "ddpprof-waits-for-parent"


def begin_reading_process() -> None:
    # Ctrl-C goes to all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name=_WAITS_FOR_PARENT, daemon=True).start()
    give_back_large_arrays()


def has_other_threads() -> bool:
    """That may hold a lock. The one that waits for the parent holds none."""
    others = set(threading.enumerate()) - {threading.current_thread()}
    return any(thread.name != _WAITS_FOR_PARENT for thread in others)


@contextmanager
def signals_later() -> Iterator[None]:
    """Those that end the process are handled when the context ends: what a handler raises within a fork is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


def _end_with_parent() -> None:
    """One that is killed cannot end the others."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
