"""Sample which line of the script the training thread executes in profiled steps.

A helper thread looks at the training thread's Python stack every few milliseconds. While the training thread holds
Python's global interpreter lock, the helper thread has to wait, so that the sample after a long call into C, such as
``tensor.tolist()``, may show the following line.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from ddpprof.model import CodeSamples
from ddpprof.model.overdue import Frame
from ddpprof.record.events import EVENTS

_INTERVAL_S = 0.002
_MANY = 1000
"""number of samples after which they become half as frequent"""
_OF_OWN = "/ddpprof/record/"
_OF_FRAMEWORKS = re.compile(r"/torch/(?!distributed/)|/(?:transformers|accelerate|lightning|pytorch_lightning)/")
"""files of libraries that run operators; pickling in ``torch.distributed`` is not an operator"""


class CodeSampler:
    """Samples the training thread while it is enabled."""

    def __init__(self) -> None:
        self._window: _Window | None = None
        self._stop: threading.Event | None = None

    def watch(self, is_wanted: bool) -> None:
        """Enable or disable sampling for the next step. Call this between steps.

        When sampling is enabled, earlier samples are discarded.
        """
        if is_wanted and self._stop is None and EVENTS.training_thread is not None:
            self._window, self._stop = _Window(EVENTS.training_thread), threading.Event()
            with suppress(RuntimeError):  # no further thread can be started
                arguments = (self._stop,)
                threading.Thread(target=self._window.run, args=arguments, name="ddpprof-sampler", daemon=True).start()
        elif not is_wanted and self._stop is not None:
            self._stop.set()
            self._stop = None

    def facts(self) -> dict[str, Any]:
        """Return the samples, as fields of the `Record`."""
        return {} if self._window is None else {"code_samples": self._window.samples()}


class _Window:
    """The samples of consecutive steps."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._began_ns = time.time_ns()
        self._places: dict[tuple[str, bool], int] = {}
        self._samples: list[tuple[int, int]] = []
        """time since the beginning in µs, and index of the place, or -1 if it is unknown"""

    def run(self, stop: threading.Event) -> None:
        interval_s = _INTERVAL_S
        while not stop.wait(interval_s):
            frame = sys._current_frames().get(self._thread)
            if frame is None or stop.is_set():
                break
            self._samples.append(((time.time_ns() - self._began_ns) // 1000, self._index_of(frame)))
            del frame  # it would keep the script's variables alive
            if len(self._samples) % _MANY == 0:
                interval_s *= 2

    def samples(self) -> CodeSamples:
        ends_us, places = zip(*self._samples[:], strict=True) if self._samples else ((), ())
        return CodeSamples(
            began_ns=self._began_ns,
            ends_us=ends_us,
            places=places,
            lines=tuple(line for line, _ in self._places),
            is_in_framework=tuple(is_in_framework for _, is_in_framework in self._places),
        )

    def _index_of(self, frame: FrameType | None) -> int:
        called: str | None = None
        while frame is not None:
            file = frame.f_code.co_filename
            one = Frame(file, frame.f_lineno or 0, frame.f_code.co_name)
            if one.is_of_user:
                is_in_framework = called is not None and _OF_FRAMEWORKS.search(called) is not None
                return self._places.setdefault((str(one), is_in_framework), len(self._places))
            if _OF_OWN not in file:
                called = file
            frame = frame.f_back
        return -1
