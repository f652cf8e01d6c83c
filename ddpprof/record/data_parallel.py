"""The ``nn.DataParallel`` modules of a process that trains without DDP."""

from __future__ import annotations

from typing import Any

import torch


class DataParallelNotes:
    def __init__(self) -> None:
        self._facts: dict[int, dict[str, Any]] = {}
        self._device = "cpu"

    def forward_begins(self, model: torch.nn.DataParallel[Any]) -> None:
        if id(model) not in self._facts:
            self._facts[id(model)] = _describe(model)
            self._device = model.src_device_obj.type if model.device_ids else "cpu"

    def facts(self) -> dict[str, Any]:
        """What belongs into ``facts.json``: nothing where DDP trains."""
        if not self._facts:
            return {}
        return {"data_parallel": list(self._facts.values()), "device": self._device}


def _describe(model: torch.nn.DataParallel[Any]) -> dict[str, Any]:
    parameters = list(model.module.parameters())
    return {
        "name": type(model.module).__name__,
        "device_ids": [int(device) for device in model.device_ids],
        "num_parameters": len(parameters),
        "parameter_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
    }
