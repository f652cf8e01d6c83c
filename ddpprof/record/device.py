"""Which devices does DDP train on, and when have they finished their work?

A NCCL kernel whose peer has gone never ends, and whoever waits for its device hangs. So another thread waits for the
device, and the training thread waits for that thread with a time limit. Signals can reach it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, wait
from contextlib import suppress

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpprof.record.standby import STANDBY

PATIENCE_S = 5.0
"""seconds to wait for a device; more if steps are long"""


class TrainingDevice:
    """The accelerators of one process's DDP modules; none if it trains on the CPU."""

    def __init__(self) -> None:
        self.accelerators: tuple[torch.device, ...] = ()
        self._waiting: Future[None] | None = None
        """the last wait for the devices"""
        self.is_captured = False
        """True while the script captures a CUDA graph, which whoever waits for the device would break"""

    def found(self, devices: Iterable[torch.device]) -> None:
        """Add devices on which training takes place."""
        self.accelerators = tuple(dict.fromkeys([*self.accelerators, *(one for one in devices if one.type != "cpu")]))

    @property
    def type(self) -> str:
        return self.accelerators[0].type if self.accelerators else "cpu"

    @property
    def is_accelerator(self) -> bool:
        return bool(self.accelerators)

    def synchronise(self) -> None:
        """Wait until the devices have finished their work, however long that takes."""
        for device in self.accelerators:
            torch.accelerator.synchronize(device)

    def comes_to_rest(self, patience_s: float) -> bool:
        """Wait as `synchronise` does, but at most `patience_s`.

        Return False if it takes longer, a device fails, or a CUDA graph is being captured.
        """
        if not self.accelerators:
            return True
        if self.is_captured:
            return False
        if self._waiting is not None and not _ends_in_time(self._waiting, patience_s):
            return False  # since an earlier call
        with suppress(RuntimeError):  # none can wait for a device that may be stuck
            self._waiting = STANDBY.run(self.synchronise)
            return _ends_in_time(self._waiting, patience_s) and self._waiting.exception() is None
        return False


def _ends_in_time(waiting: Future[None], patience_s: float) -> bool:
    return bool(wait([waiting], patience_s).done)


def devices_of(ddp: DistributedDataParallel) -> tuple[torch.device, ...]:
    """Return the devices of DDP's own type that hold the module's parameters."""
    kind = ddp.device_type
    held = dict.fromkeys(parameter.device for parameter in ddp.parameters() if parameter.device.type == kind)
    return tuple(held) or (torch.device(kind),)
