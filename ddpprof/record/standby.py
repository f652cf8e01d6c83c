"""Threads that are started while the script trains, and that wait for work until the process ends.

From Python 3.12 on, no thread can be started while the interpreter exits, which is when most recordings are completed.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

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
