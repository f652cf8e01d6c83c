"""An accelerator that is none: DDP on the CPU, with what differs on accelerators, one thing at a time.

Within a test, `emulate()` returns what the recorder does to the device. For processes that a test starts, `SWITCH` is
the one environment variable: with it, every DDP module of every Python process takes itself for one on "cuda".
"""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

SWITCH = "DDPPROF_TEST_ACCELERATOR"
STOP_BLOCKS = "the profiler's stop never returns"
_TARGET = "torch.nn.parallel.distributed"


@dataclass
class Device:
    """What was asked of the device."""

    synchronized: list[Any] = field(default_factory=list)


def environment(*what: str) -> dict[str, str]:
    """Return the variables with which a process and its children emulate an accelerator. `what`: beside it."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {SWITCH: json.dumps(what), "PYTHONPATH": os.pathsep.join(paths)}


def first_recorded(asked: int) -> int:
    """Return the first recorded step where `asked` are to be skipped: on an accelerator torch waits in eleven."""
    return max(asked, 11) if SWITCH in os.environ else asked


@contextmanager
def emulate(device_type: str = "cuda", *, blocks: bool = False) -> Iterator[Device]:
    """DDP modules that are made meanwhile take themselves for ones on `device_type`.

    `blocks`: who waits for the device waits until the end of the block.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    device, comes_to_rest = Device(), threading.Event()

    def synchronize(which: Any = None) -> None:
        device.synchronized.append(which)
        if blocks:
            comes_to_rest.wait()

    with (
        ExitStack() as at_end,
        mock.patch.object(DistributedDataParallel, "__init__", _as_on(device_type, DistributedDataParallel.__init__)),
        mock.patch.object(torch.accelerator, "is_available", return_value=True),
        mock.patch.object(torch.accelerator, "synchronize", synchronize),
    ):
        at_end.callback(comes_to_rest.set)
        yield device


def _as_on(device_type: str, original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.device_type = device_type

    return init


def block_for_ever() -> None:
    """As the driver of a device does: outside Python, deaf to signals that have a handler."""
    lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)


def emulate_where_asked() -> None:
    """Called by ``sitecustomize``: as soon as a process imports DDP, if `SWITCH` is set."""
    if SWITCH in os.environ:
        sys.meta_path.insert(0, _EmulateOnImport())


class _EmulateOnImport(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *_: Any) -> Any:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _emulate_from_now_on(module, json.loads(os.environ[SWITCH]))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _emulate_from_now_on(distributed: Any, what: list[str]) -> None:
    """torch itself is imported only in part as yet."""
    ddp = distributed.DistributedDataParallel
    original = _as_on("cuda", ddp.__init__)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        torch = sys.modules["torch"]
        torch.accelerator.is_available = lambda: True  # type: ignore[attr-defined]
        torch.accelerator.synchronize = lambda *_: None  # type: ignore[attr-defined]
        if STOP_BLOCKS in what:
            torch.autograd.profiler.profile.__exit__ = lambda *_: block_for_ever()  # type: ignore[attr-defined]
        profile = torch.profiler.profile  # type: ignore[attr-defined]
        if profile.export_chrome_trace is not _with_kernels:
            _with_kernels.original = profile.export_chrome_trace  # type: ignore[attr-defined]
            profile.export_chrome_trace = _with_kernels
        original(self, *args, **kwargs)

    ddp.__init__ = functools.wraps(original)(init)


def _with_kernels(self: Any, path: str, *options: Any) -> None:
    """Let each operator launch a kernel, which begins when the operator ends."""
    _with_kernels.original(self, path, *options)  # type: ignore[attr-defined]
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    operators = [event for event in content["traceEvents"] if event.get("cat") == "cpu_op"]
    for correlation, operator in enumerate(operators, 1 << 20):
        launch = {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": operator["pid"],
            "tid": operator["tid"], "ts": operator["ts"], "dur": operator["dur"] / 2,
            "args": {"correlation": correlation},
        }  # fmt: skip
        kernel = {
            "ph": "X", "cat": "kernel", "name": f"emulated_{operator['name']}", "pid": 0, "tid": 7,
            "ts": operator["ts"] + operator["dur"], "dur": 1,
            "args": {"device": 0, "stream": 7, "correlation": correlation},
        }  # fmt: skip
        content["traceEvents"] += [launch, kernel]
    Path(path).write_text(json.dumps(content), encoding="utf-8")
