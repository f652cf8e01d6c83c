"""Which parameters does the script train although no DDP module averages their gradients?

DDP averages gradients only in a backward pass that follows its own forward. A script may compute its losses from
``model.module``, so that the forward of the DDP module never runs, or give an optimizer parameters that it forgot to
wrap. Such parameters are looked at twice, and some of their values are kept for a comparison between ranks. Those that
no DDP module has are first looked at before their optimizer's first step: ranks that trained would differ already.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import TensorWeakRef

from ddpprof.model import UnaveragedParameters
from ddpprof.record.device import PATIENCE_S, TrainingDevice
from ddpprof.record.reducer import ddp_modules, known_to_ddp
from ddpprof.record.replicas import replica, some_to_read, values_of


@dataclass(slots=True)
class _Candidate:
    """Parameters of one module, as they were at the first look."""

    module: str
    names: list[str]
    parameters: list[TensorWeakRef]
    versions: list[int]
    """torch's counts of changes to their values"""
    ddp: weakref.ref[DistributedDataParallel] | None
    step: int
    values: tuple[float, ...]

    def trained(self) -> tuple[list[str], list[torch.Tensor]] | None:
        """Return those whose values have changed, by name, and all; ``None`` if the script has dropped any."""
        now = [reference() for reference in self.parameters]
        if any(one is None for one in now):
            return None
        named = zip(self.names, now, self.versions, strict=True)
        return [name for name, one, version in named if one is not None and one._version != version], now


class Unaveraged:
    def __init__(self, device: TrainingDevice) -> None:
        self._device = device
        self._called: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """those that have taken a step"""
        self._candidates: list[_Candidate] = []
        self._has_looked = False
        self._found: tuple[UnaveragedParameters, ...] = ()

    def is_called(self, ddp: DistributedDataParallel) -> None:
        """Note a forward of a DDP module with gradients."""
        self._called.add(ddp)

    def optimizer_begins(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Note which parameters of an optimizer no DDP module has. Call this after the first forward of DDP."""
        if self._has_looked or optimizer in self._optimizers or not ddp_modules():
            return
        with suppress(Exception):  # modules of the script may be incomplete
            known = known_to_ddp(ddp_modules(), with_frozen=True)
            forgotten = [one for one in _trained_by([optimizer]) if id(one) not in known]
            for module, named in _named(forgotten).items():
                self._may_be_trained(module, named, None, step)

    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.add(optimizer)

    def first_look(self, step: int) -> None:
        """Note which parameters belong to DDP modules that have not been called. Call this between two steps."""
        self._has_looked = True
        with suppress(Exception):  # as above
            averaged = known_to_ddp(self._called)
            optimized = {id(one) for one in _trained_by(list(self._optimizers))}
            for ddp in ddp_modules():
                if ddp not in self._called:
                    missed = (known_to_ddp([ddp]) & optimized) - averaged
                    named = {name: one for name, one in ddp.module.named_parameters() if id(one) in missed}
                    self._may_be_trained(type(ddp.module).__name__, named, ddp, step)

    def second_look(self, step: int) -> None:
        """Keep those that have been trained since the first look. Call this between two steps."""
        if not self._has_looked or all(step <= one.step for one in self._candidates):
            return
        candidates, self._candidates = self._candidates, []
        found: list[UnaveragedParameters] = []
        for one in candidates:
            ddp, trained = None if one.ddp is None else one.ddp(), one.trained()
            if trained is None or not trained[0] or (ddp is not None and ddp in self._called):
                continue
            read = some_to_read(trained[1])
            now = self._values_of(read)
            values = None if now is None else replica(len(found), (one.step, one.values), (step, now), read)
            if values is not None:
                names, shapes = tuple(trained[0]), tuple(tuple(parameter.shape) for parameter in trained[1])
                found.append(UnaveragedParameters(one.module, names, ddp is not None, values, shapes))
        self._found = tuple(found)

    def facts(self) -> dict[str, Any]:
        """Return fields of the `Record`."""
        return {"unaveraged": self._found}

    def _may_be_trained(
        self, module: str, named: dict[str, torch.Tensor], ddp: DistributedDataParallel | None, step: int
    ) -> None:
        """Keep what is to be looked at again, if any of the parameters can be read."""
        parameters = list(named.values())
        read = some_to_read(parameters)
        values = self._values_of(read)
        if values:
            references, versions = [TensorWeakRef(one) for one in parameters], [one._version for one in parameters]
            reference = None if ddp is None else weakref.ref(ddp)
            self._candidates.append(_Candidate(module, list(named), references, versions, reference, step, values))

    def _values_of(self, parameters: Sequence[torch.Tensor]) -> tuple[float, ...] | None:
        """Return some values of each; ``None`` if an accelerator has them that does not come to rest in time."""
        kinds = {one.device.type for one in parameters} - {"cpu"}
        if kinds and not (kinds == {self._device.type} and self._device.comes_to_rest(PATIENCE_S)):
            return None
        return values_of(parameters)


def _trained_by(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Return the parameters of optimizers, each once."""
    groups = (group["params"] for one in optimizers for group in one.param_groups)
    return list({id(one): one for group in groups for one in group if one.requires_grad}.values())


def _named(parameters: Sequence[torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Return parameters by the class of the outermost module that has them, and by their names in it."""
    wanted, named = {id(one): one for one in parameters}, dict[str, dict[str, torch.Tensor]]()
    having = [(module, own) for module in _living_modules() if wanted and (own := _own(module, wanted))]
    for module, own in sorted(having, key=lambda one: (-len(one[1]), -len("".join(one[1])))):
        left = {name: one for name, one in own.items() if wanted.pop(id(one), None) is not None}
        if left:
            named.setdefault(type(module).__name__, {}).update(left)
    if wanted:
        named[""] = {f"shape {tuple(one.shape)}": one for one in wanted.values()}
    return named


def _own(module: nn.Module, wanted: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return those of the wanted parameters that a module has, by their names; none if it is incomplete."""
    with suppress(Exception):
        return {name: one for name, one in module.named_parameters() if id(one) in wanted}
    return {}


def _living_modules() -> list[nn.Module]:
    """Return all modules. `isinstance` would ask for ``__class__``, to which some objects warn."""
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
