"""In profiled steps, record the script's lines that make the host wait for the accelerator, and the lines that run.

``loss.item()``, ``if tensor:``, ``tensor.cpu()``, ``tensor.nonzero()`` and ``print(tensor)`` return only when the
accelerator has computed the value. The accelerator is then idle until the host launches more work. `HostReads` wraps
these methods of `torch.Tensor`. Each wrapper calls the original, and records the line of the script and the duration of
the call.

`CodeSampler` samples the training thread's Python stack every few milliseconds, in a helper thread. While the training
thread holds Python's global interpreter lock, the helper thread has to wait. Therefore, the sample after a long call
into C, such as ``tensor.tolist()``, may show the line after the call.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import get_ident
from time import time_ns
from types import FrameType
from typing import Any

import torch

from ddpprof.model import CodeSamples, HostRead
from ddpprof.model.overdue import Frame
from ddpprof.model.record import EMPTY_CACHE
from ddpprof.record.events import EVENTS

_METHODS = {
    "item": "item()",
    "tolist": "tolist()",
    "cpu": "cpu()",
    "to": "to()",
    "nonzero": "nonzero()",
    "__bool__": "bool()",
    "__int__": "int()",
    "__float__": "float()",
    "__index__": "int()",
    "__repr__": "print()",
    "__format__": "format()",
}
"""method that waits for the accelerator → how users write the call. If one of these methods calls another, only the
outer call is recorded
"""
_OF_TORCH = re.compile(r"/torch/(\w+/.*)")
"""pattern for files of PyTorch, except the files that define the methods of tensors"""

_MOST_PLACES = 100
_Key = tuple[str, str, int, str, str]


class HostReads:
    """Counts the training thread's reads of accelerator tensors, and measures their duration, by line of the script."""

    def __init__(self) -> None:
        self._found: dict[_Key, list[int]] = {}
        """method, file, line, function and PyTorch's file → number of calls, and their total duration in ns"""
        self._replaced: list[tuple[Any, str, Any]] = []
        self._is_reading = False
        self._num_steps = 0

    def watch(self, is_wanted: bool) -> None:
        """Enable or disable recording for the next step. Call this between steps."""
        self._num_steps += is_wanted
        if is_wanted and not self._replaced:
            for name, written in _METHODS.items():
                self._replace(torch.Tensor, name, written)
            self._replace(torch.accelerator, "synchronize", "torch.accelerator.synchronize()")
            self._replace(torch.cuda, "synchronize", "torch.cuda.synchronize()")
            self._replace(torch.cuda, "empty_cache", EMPTY_CACHE)
        elif not is_wanted:
            while self._replaced:
                owner, name, original = self._replaced.pop()
                if original is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)

    def facts(self) -> dict[str, Any]:
        """Return the recorded lines, as fields of the `Record`."""
        reads = (
            HostRead(written, str(Frame(file, line, function)), calls, waited_ns, self._num_steps, library)
            for (written, file, line, function, library), (calls, waited_ns) in self._found.items()
        )
        return {"host_reads": tuple(sorted(reads, key=lambda one: -one.waited_ns))}

    def _replace(self, owner: Any, name: str, written: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        self._replaced.append((owner, name, vars(owner).get(name)))
        wrapper = functools.wraps(original)(self._noting(original, written))
        dynamo = sys.modules.get("torch._dynamo")  # must not compile the wrapper
        setattr(owner, name, wrapper if dynamo is None else dynamo.disable(wrapper))

    def _noting(self, original: Callable[..., Any], written: str) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            if self._is_reading or get_ident() != EVENTS.training_thread or not _may_wait(args):
                return original(*args, **kwargs)
            self._is_reading = True
            began_ns = time_ns()
            try:
                value = original(*args, **kwargs)
            finally:
                self._is_reading = False
            if not isinstance(value, torch.Tensor) or written == "nonzero()" or _is_on_host(value):
                self._add(written, time_ns() - began_ns)
            return value

        return read

    def _add(self, written: str, took_ns: int) -> None:
        found_line = _of_user(sys._getframe(2))
        if found_line is None or found_line.runs_backward:
            return
        frame = found_line.frame
        of_torch = _OF_TORCH.search(found_line.called)
        key = (written, frame.file, frame.line, frame.function, "" if of_torch is None else of_torch[1])
        if key in self._found or len(self._found) < _MOST_PLACES:
            found = self._found.setdefault(key, [0, 0])
            found[0] += 1
            found[1] += took_ns


def _may_wait(args: tuple[Any, ...]) -> bool:
    """Return True unless the first argument is a tensor on the host."""
    first = args[0] if args else None
    return not isinstance(first, torch.Tensor) or not _is_on_host(first)


def _is_on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type in ("cpu", "meta")


@dataclass(frozen=True, slots=True)
class _UserLine:
    frame: Frame
    called: str
    """file of the library that the line calls; empty if it calls no library, or only ddpprof's wrappers"""
    caller: FrameType | None
    runs_backward: bool
    """whether the line calls ``backward`` or ``torch.autograd.grad``, and autograd runs no code of the user"""
    computes_metrics: bool


def _of_user(frame: FrameType | None) -> _UserLine | None:
    """Return the innermost frame of the user's code, starting at `frame`, or ``None`` if there is none."""
    called, runs_backward, computes_metrics = "", False, False
    while frame is not None:
        one = Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
        runs_backward |= one.function == _RUNS_BACKWARD
        if one.is_of_user:
            return _UserLine(one, called, frame.f_back, runs_backward, computes_metrics)
        computes_metrics |= _OF_METRICS.search(one.file) is not None
        if _OF_OWN not in one.file:
            called = one.file
        frame = frame.f_back
    return None


def _is_in_backward(frame: FrameType | None) -> bool:
    """Return True if autograd runs the frame in a backward pass, for example as a hook or in a checkpoint."""
    while frame is not None:
        if frame.f_code.co_name == _RUNS_BACKWARD:
            return True
        frame = frame.f_back
    return False


def _caller_of_modules(frame: FrameType | None) -> str:
    """Return the line of the user's code that calls the outermost module on the stack; empty if there is no module."""
    caller, is_module = "", False
    while frame is not None:
        if frame.f_code.co_filename.endswith(_OF_MODULES):
            is_module = True
        elif is_module:
            one = Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
            if one.is_of_user:
                caller, is_module = str(one), False
        frame = frame.f_back
    return caller


_OF_MODULES = "/torch/nn/modules/module.py"
"""file with the method that calls a module's ``forward``"""
_RUNS_BACKWARD = "_engine_run_backward"
"""name of PyTorch's function that runs a backward pass"""
_OF_METRICS = re.compile(r"/(?:torchmetrics|torcheval|evaluate|sklearn/metrics)/")
"""pattern for files of libraries that compute metrics"""
_INTERVAL_S = 0.002
_MANY = 1000
"""each time that this many samples have been taken, the sampling rate is halved"""
_OF_OWN = "/ddpprof/record/"
_OF_FRAMEWORKS = re.compile(r"/torch/(?!distributed/)|/(?:transformers|accelerate|lightning|pytorch_lightning)/")
"""pattern for files of libraries that run operators; ``torch.distributed`` is excluded, because its pickling is not an
operator
"""


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
        self._began_ns = time_ns()
        self._places: dict[tuple[str, bool, bool, str, bool, bool], int] = {}
        self._samples: list[tuple[int, int]] = []
        """for each sample: end in µs since `_began_ns`, and index of the place (-1 if the place is unknown)"""

    def run(self, stop: threading.Event) -> None:
        interval_s = _INTERVAL_S
        while not stop.wait(interval_s):
            frame = sys._current_frames().get(self._thread)
            if frame is None or stop.is_set():
                break
            self._samples.append(((time_ns() - self._began_ns) // 1000, self._index_of(frame)))
            del frame  # it would keep the script's variables alive
            if len(self._samples) % _MANY == 0:
                interval_s *= 2

    def samples(self) -> CodeSamples:
        taken = list(self._samples)  # the thread may be adding samples
        columns = tuple(zip(*list(self._places), strict=True)) or 6 * ((),)
        lines, in_framework, in_backward, callers, runs_backward, computes_metrics = columns
        return CodeSamples(
            began_ns=self._began_ns,
            ends_us=tuple(end_us for end_us, _ in taken),
            places=tuple(place for _, place in taken),
            lines=lines,
            is_in_framework=in_framework,
            is_in_backward=in_backward,
            callers=callers,
            runs_backward=runs_backward,
            computes_metrics=computes_metrics,
        )

    def _index_of(self, frame: FrameType) -> int:
        line = _of_user(frame)
        if line is None:
            return -1
        is_in_framework = _OF_FRAMEWORKS.search(line.called) is not None
        is_in_backward, caller = _is_in_backward(line.caller), _caller_of_modules(line.caller)
        key = (str(line.frame), is_in_framework, is_in_backward, caller, line.runs_backward, line.computes_metrics)
        return self._places.setdefault(key, len(self._places))
