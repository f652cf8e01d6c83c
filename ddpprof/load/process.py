"""How a process that was started for reading begins, and ends with the one that started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

from ddpprof.load.heap import give_back_large_arrays


def begin_reading_process() -> None:
    # Ctrl-C goes to all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    give_back_large_arrays()


def _end_with_parent() -> None:
    """One that is killed cannot end the others."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
