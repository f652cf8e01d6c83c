"""Where training runs, which framework runs it, and what it saves."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpprof.linux_files import cpu_quota
from ddpprof.model.backends import standard_name
from ddpprof.record import rank_conditions

_MAX_CHECKPOINTS_KEPT = 64
_BY_MODULE = {
    "transformers.trainer": "transformers",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "lightning.fabric": "fabric",
    "lightning_fabric": "fabric",
    "accelerate.accelerator": "accelerate",
}
"""first match wins: transformers' Trainer uses Accelerate, and Lightning uses Fabric"""


class JobEnvironment:
    def __init__(self) -> None:
        self._framework: str | None = None
        self._checkpoints: list[str] = []
        self._device = "cpu"
        self._backend = ""
        self._groups: set[tuple[int, ...]] = set()
        """ranks of the process groups in which the modules' gradients are averaged"""
        self._world_size = 0
        self._timeout_s: float | None = None
        self._joins = False

    def look_who_calls(self) -> None:
        """Note which framework, if any, makes or calls the DDP module."""
        self._framework = self._framework or framework_at_work()

    def describe(self, ddp: DistributedDataParallel) -> None:
        self.look_who_calls()
        self._device = ddp.device_type
        self._backend = backend_for(ddp.process_group, ddp.device_type)
        self._timeout_s = _timeout_s(ddp.process_group, ddp.device_type)
        self._joins = bool(getattr(getattr(ddp, "_join_config", None), "enable", False))

    def describe_group(self, group: dist.ProcessGroup) -> None:
        """Note the job's process group, of a job that fails before its DDP module is called."""
        self.look_who_calls()
        self._backend = standard_name(str(dist.get_backend(group)))

    def averages_in(self, group: dist.ProcessGroup) -> None:
        """Note the process group of a DDP module."""
        self._groups.add(tuple(dist.get_process_group_ranks(group)))
        self._world_size = dist.get_world_size()

    def _together(self) -> tuple[int, ...] | None:
        """Return the ranks with which some module averages gradients; ``None`` if they are all ranks of the job."""
        ranks = set[int]().union(*self._groups)
        return None if not ranks or len(ranks) == self._world_size else tuple(sorted(ranks))

    def saves(self, target: Any) -> None:
        if isinstance(target, str | os.PathLike) and len(self._checkpoints) < _MAX_CHECKPOINTS_KEPT:
            path = os.path.abspath(os.fspath(target))
            if path not in self._checkpoints:
                self._checkpoints.append(path)

    def facts(self) -> dict[str, Any]:
        """Return fields of the `Record`."""
        return {
            "device": self._device,
            "backend": self._backend,
            "group_size": len(next(iter(self._groups))) if len(self._groups) == 1 else None,
            "group_ranks": self._together(),
            "timeout_s": self._timeout_s,
            "joins": self._joins,
            "framework": self._framework,
            "is_compiled": has_compiled(),
            "num_cores": _num_cores(),
            "core_list": core_list(),
            "cpu_quota": cpu_quota(),
            "num_threads": torch.get_num_threads(),
            "checkpoints": tuple(self._checkpoints),
            "of_some_ranks": rank_conditions.of_main_script(),
        }


def has_compiled() -> bool:
    """Return whether torch.compile has compiled anything in this process, as torch's own counters tell."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"]["ok"])


def _num_cores() -> int | None:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def core_list() -> str | None:
    """Return the cores on which this process may run, such as ``"0,1,2"``; ``None`` if the system does not tell."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else None


def backend_for(group: Any, device_type: str) -> str:
    """Return the group's backend for that kind of device; one group may have several.

    A group that was given no backend reports ``"undefined"``.
    """
    try:
        return standard_name(str(group._get_backend(torch.device(device_type)).name()))
    except (RuntimeError, AttributeError):  # a backend unknown to torch, or none for the device
        return standard_name(str(dist.get_backend(group)))


def _timeout_s(group: Any, device_type: str) -> float | None:
    """Return after how many seconds the group gives a collective up; ``None`` if torch does not tell."""
    try:
        return float(group._get_backend(torch.device(device_type)).options._timeout.total_seconds())
    except (RuntimeError, AttributeError):
        return None


def framework_at_work() -> str | None:
    """Return the framework at work now, or ``None`` if the script itself uses torch."""
    return _on_stack() or _holding_the_model()


def _holding_the_model() -> str | None:
    """Return ``"accelerate"`` if the script has an Accelerator, which is not on the stack during training."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    return "accelerate" if getattr(state, "_shared_state", None) else None


def _on_stack() -> str | None:
    found: set[str] = set()
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        name = frame.f_globals.get("__name__", "")
        found.update(module for module in _BY_MODULE if name == module or name.startswith(f"{module}."))
    return next((framework for module, framework in _BY_MODULE.items() if module in found), None)
