"""The ``nn.DataParallel`` modules of a process that trains without DDP."""

from __future__ import annotations

from typing import Any

import torch

from ddpprof.model import DataParallelModule


class DataParallelNotes:
    def __init__(self) -> None:
        self._facts: dict[int, DataParallelModule] = {}
        self._device = "cpu"

    def forward_begins(self, model: torch.nn.DataParallel[Any]) -> None:
        if id(model) not in self._facts:
            self._facts[id(model)] = _describe(model)
            self._device = model.src_device_obj.type if model.device_ids else "cpu"

    def facts(self) -> dict[str, Any]:
        """Return fields of the `Record`: none where DDP trains."""
        if not self._facts:
            return {}
        return {"data_parallel": tuple(self._facts.values()), "device": self._device}


def _describe(model: torch.nn.DataParallel[Any]) -> DataParallelModule:
    parameters = list(model.module.parameters())
    return DataParallelModule(
        name=type(model.module).__name__,
        device_ids=tuple(int(device) for device in model.device_ids),
        num_parameters=len(parameters),
        parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
    )
