"""The start of a process that reads for another, and its end together with that one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import AbstractContextManager

from ddpprof.load.free_memory import give_back_large_arrays
from ddpprof.signals import deferred_signals

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_WAITS_FOR_PARENT = "ddpprof-waits-for-parent"


def begin_reading_process() -> None:
    # Ctrl-C goes to all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in _ENDING:
        if callable(signal.getsignal(number)):  # an ignored signal stays ignored, such as SIGHUP under nohup
            signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name=_WAITS_FOR_PARENT, daemon=True).start()
    give_back_large_arrays()


def has_other_threads() -> bool:
    """Return whether threads run that may hold a lock; the one that waits for the parent holds none."""
    others = set(threading.enumerate()) - {threading.current_thread()}
    return any(thread.name != _WAITS_FOR_PARENT for thread in others)


def signals_later() -> AbstractContextManager[object]:
    """Defer signals whose handlers may raise until the context ends: an exception within a fork would be lost."""
    return deferred_signals([number for number in (signal.SIGINT, *_ENDING) if callable(signal.getsignal(number))])


def _end_with_parent() -> None:
    """End this process when its parent ends: a parent that is killed cannot end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
