"""Bounds on what the profiler collects while no step ends, such as in a validation or while a CUDA graph is replayed.

A thread watches the clock and the process's memory. The profiler belongs to the training thread, so the watching thread
asks the interpreter to make the call there, between two instructions of the main thread (``Py_AddPendingCall``). A step
that was cut short does not count as profiled; the next one does.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from ddpprof.record.memory import resident_bytes

_LOOKS_EVERY_S = 0.01
_TRIES_AGAIN_S = 0.05
_USUAL_STEPS = 5
"""factor by which a step must exceed the longest earlier one to be unusual, and then may not take much memory"""
_MEMORY_OF_UNUSUAL_BYTES = 8 << 20
"""bytes; the profiler needs several times as much when it stops"""
_LONG_S = 10.0
"""seconds that an unusual step may last in any case"""


class Bounds:
    """Bounds on all profiled steps together, and on a step that does not end."""

    def __init__(self, leave_out: Callable[[], bool], most_seconds: float, most_bytes: int) -> None:
        """Set the bounds. `leave_out` is called in the main thread, and returns False to be tried again."""
        self._leave_out = leave_out
        self._most_s = most_seconds
        self._most_bytes = most_bytes
        self._longest_s = {True: 0.0, False: 0.0}
        """longest steps, by whether they are usual"""
        self._step_began = 0.0
        self._bytes_at_step = 0
        self._began: float | None = None
        self._bytes_at_begin = 0
        self._over = threading.Event()
        self._in_step = False

    @property
    def longest_s(self) -> float:
        """Length of the longest step so far; initial steps, which take longer, count only if there is no other."""
        return self._longest_s[True] or self._longest_s[False]

    def step_ends(self, usual: bool) -> None:
        """End a step, profiled or not. `usual`: it is not one of the initial skipped ones."""
        self._in_step = False
        if self._step_began:
            self._longest_s[usual] = max(self._longest_s[usual], time.monotonic() - self._step_began)

    def step_begins(self, profiled: bool) -> None:
        self._step_began = time.monotonic()
        if not profiled:
            return
        self._bytes_at_step = resident_bytes() or 0
        if self._began is None:
            self._began, self._bytes_at_begin = self._step_began, self._bytes_at_step
            threading.Thread(target=self._watch, name="ddpprof-bounds", daemon=True).start()
        self._in_step = True

    def end(self) -> None:
        """End the profiled steps."""
        self._in_step = False
        self._over.set()

    def exceeded(self) -> str | None:
        """Return in words which bound on all profiled steps was reached."""
        if self._began is None:
            return None
        if time.monotonic() - self._began > self._most_s:
            return f"they took more than {self._most_s:g} s (--most-seconds)"
        if (resident_bytes() or 0) - self._bytes_at_begin > self._most_bytes:
            return f"the process grew by more than {self._most_bytes >> 20} MiB in them (--most-memory)"
        return None

    def _step_is_unusual(self) -> bool:
        took_s = time.monotonic() - self._step_began
        grew = (resident_bytes() or 0) - self._bytes_at_step
        return took_s > _USUAL_STEPS * self.longest_s and (grew > _MEMORY_OF_UNUSUAL_BYTES or took_s > _LONG_S)

    def _watch(self) -> None:
        while not self._over.wait(_LOOKS_EVERY_S):
            step = self._step_began
            if self._in_step and (self._step_is_unusual() or self.exceeded() is not None):
                while self._in_step and step == self._step_began and not self._over.is_set():
                    if self._left_out_in_main_thread():
                        self._in_step = False
                    self._over.wait(_TRIES_AGAIN_S)

    def _left_out_in_main_thread(self) -> bool:
        answer: Future[bool] = Future()
        _asked.append((self._leave_out, answer))
        ctypes.pythonapi.Py_AddPendingCall(_RUN_ASKED, None)
        try:
            return answer.result(1.0)
        except TimeoutError:
            return False


_asked: list[tuple[Callable[[], bool], Future[bool]]] = []
"""functions to be called in the main thread, and where their answers go"""


def _run_asked(_nothing: object) -> int:
    while _asked:
        function, answer = _asked.pop()
        answer.set_result(function())
    return 0


_RUN_ASKED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_asked)
"""kept alive as long as the interpreter, which may call it late"""
