"""What feeds training and what it saves: data loaders, their samplers, checkpoints. And where it runs."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

_MAX_EPOCHS_KEPT = 16
_MAX_CHECKPOINTS_KEPT = 64


class Surroundings:
    def __init__(self) -> None:
        self.data_ns = 0
        self._loaders: dict[int, dict[str, Any]] = {}
        self._fetched_from: set[int] = set()
        self._epochs_set_on: set[int] = set()
        self._checkpoints: list[str] = []
        self._device = "cpu"
        self._backend = ""

    def describe(self, ddp: DistributedDataParallel) -> None:
        self._device = ddp.device_type
        self._backend = dist.get_backend(ddp.process_group)

    def loader_begins(self, loader: DataLoader[Any]) -> None:
        """A pass over `loader` begins."""
        entry = self._loaders.setdefault(id(loader._index_sampler), _describe_loader(loader))
        entry["num_iterations"] += 1
        entry["set_epoch_called"] |= entry["_sampler"] in self._epochs_set_on
        epochs = entry["epochs_set"]
        if epochs is not None and len(epochs) < _MAX_EPOCHS_KEPT:
            epochs.append(int(getattr(loader.sampler, "epoch", 0)))

    def fetches(self, iterator: Any, waited_ns: int) -> None:
        """A batch was asked for."""
        self.data_ns += waited_ns
        self._fetched_from.add(id(iterator._index_sampler))

    def end_step(self, trained: bool) -> None:
        """A step ended; `trained`: it held a synchronised DDP forward."""
        for key in self._fetched_from if trained else ():
            if key in self._loaders:
                self._loaders[key]["num_training_steps"] += 1
        self._fetched_from.clear()
        self.data_ns = 0

    def sets_epoch(self, sampler: Any) -> None:
        self._epochs_set_on.add(id(sampler))
        for entry in self._loaders.values():
            entry["set_epoch_called"] |= entry["_sampler"] == id(sampler)

    def saves(self, target: Any) -> None:
        if isinstance(target, str | os.PathLike) and len(self._checkpoints) < _MAX_CHECKPOINTS_KEPT:
            path = os.path.abspath(os.fspath(target))
            if path not in self._checkpoints:
                self._checkpoints.append(path)

    def facts(self) -> dict[str, Any]:
        return {
            "device": self._device,
            "backend": self._backend,
            "loaders": [
                {key: value for key, value in entry.items() if key != "_sampler"} for entry in self._loaders.values()
            ],
            "checkpoints": self._checkpoints,
        }


def _describe_loader(loader: DataLoader[Any]) -> dict[str, Any]:
    sampler = loader.sampler
    try:
        dataset_size = len(loader.dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        dataset_size = None
    kind = type(sampler).__name__
    return {
        "sampler": kind,
        "dataset_size": dataset_size,
        "batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        "num_iterations": 0,
        "num_training_steps": 0,
        "set_epoch_called": False,
        "_sampler": id(sampler),
        "epochs_set": [] if hasattr(sampler, "set_epoch") else None,
        "shuffles": bool(getattr(sampler, "shuffle", kind == "RandomSampler")),
    }
