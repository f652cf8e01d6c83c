"""Record which lines of the script make the host wait for the accelerator in profiled steps.

``loss.item()``, ``if tensor:``, ``tensor.cpu()``, ``tensor.nonzero()`` and ``print(tensor)`` return only when the
accelerator has computed the value. The accelerator is then idle until the host launches more work.

In profiled steps on an accelerator, these methods of `torch.Tensor` are wrapped. Each wrapper calls the original, and
records the line of the script and the duration of the call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from time import time_ns
from types import FrameType
from typing import Any

import torch

from ddpprof.model import HostRead
from ddpprof.model.overdue import Frame
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
"""methods that wait → how users write the call; nested calls are counted once, as the outermost one"""
_MOST_PLACES = 100
_Key = tuple[str, str, int, str]


class HostReads:
    """Counts and times the training thread's reads of accelerator tensors, by line of the script."""

    def __init__(self) -> None:
        self._found: dict[_Key, list[int]] = {}
        """method, file, line and function → number of calls, and their total duration in ns"""
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
            HostRead(written, str(Frame(file, line, function)), calls, waited_ns, self._num_steps)
            for (written, file, line, function), (calls, waited_ns) in self._found.items()
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
        frame = _of_user(sys._getframe(2))
        if frame is None:
            return
        key = (written, frame.file, frame.line, frame.function)
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


def _of_user(frame: FrameType | None) -> Frame | None:
    """Return the innermost frame of the user's code, starting at `frame`; ``None`` if there is none."""
    while frame is not None:
        one = Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        if one.is_of_user:
            return one
        frame = frame.f_back
    return None
