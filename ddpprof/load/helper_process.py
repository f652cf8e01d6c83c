"""How a process that was started for reading begins, and ends with the one that started it."""

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
        if callable(signal.getsignal(number)):  # not where it is ignored, as SIGHUP is under nohup
            signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name=_WAITS_FOR_PARENT, daemon=True).start()
    give_back_large_arrays()


def has_other_threads() -> bool:
    """That may hold a lock. The one that waits for the parent holds none."""
    others = set(threading.enumerate()) - {threading.current_thread()}
    return any(thread.name != _WAITS_FOR_PARENT for thread in others)


def signals_later() -> AbstractContextManager[object]:
    """Those whose handlers may raise, which within a fork is lost, are handled when the context ends."""
    return deferred_signals([number for number in (signal.SIGINT, *_ENDING) if callable(signal.getsignal(number))])


def _end_with_parent() -> None:
    """One that is killed cannot end the others."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
