"""A process that reads files for another one: its start, what it sends, and ending together with its parent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ddpprof.load.limits import give_back_large_arrays
from ddpprof.signals import deferred_signals

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_WAITS_FOR_PARENT = "ddpprof-waits-for-parent"


def start_context() -> ForkContext | SpawnContext:
    """Return how to start helpers.

    A fork starts at once and shares unchanged memory, but may hang in a threaded process.
    """
    may_hang = _has_other_threads() or "torch" in sys.modules
    if sys.platform == "linux" and not may_hang:
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


def begin_reading_process() -> None:
    """Prepare this process, which reads for its parent: leave Ctrl-C to the parent, and end with the parent."""
    # Ctrl-C goes to all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in _ENDING:
        if callable(signal.getsignal(number)):  # an ignored signal stays ignored, such as SIGHUP under nohup
            signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name=_WAITS_FOR_PARENT, daemon=True).start()
    give_back_large_arrays()


def send_with_arrays(connection: Connection, result: object) -> None:
    """Send a result without copying its arrays; pickled with the rest, they would all be in memory twice."""
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    connection.send((rest, [array.nbytes for array in arrays]))
    for array in arrays:
        connection.send_bytes(array)


def receive_with_arrays(connection: Connection) -> Any:
    rest, sizes = connection.recv()
    arrays = [bytearray(size) for size in sizes]
    for array in arrays:
        connection.recv_bytes_into(array)
    return pickle.loads(rest, buffers=arrays)  # noqa: S301 (a process of ours wrote it)


def _has_other_threads() -> bool:
    """Return True if other threads run that may hold a lock; the one that waits for the parent holds none."""
    others = set(threading.enumerate()) - {threading.current_thread()}
    return any(thread.name != _WAITS_FOR_PARENT for thread in others)


def signals_later() -> AbstractContextManager[object]:
    """Defer signals whose handlers may raise until the context ends: an exception within a fork would be lost."""
    return deferred_signals([number for number in (signal.SIGINT, *_ENDING) if callable(signal.getsignal(number))])


def _end_with_parent() -> None:
    """End this process when its parent ends; a parent that is killed cannot end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
