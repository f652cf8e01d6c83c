"""Which parameters does the script train although no DDP module averages their gradients?

DDP averages gradients only in a backward pass that follows its own forward. A script may compute its losses from
``model.module``, so that the forward of the DDP module never runs, or give an optimizer parameters that it forgot to
wrap. Such parameters are looked at twice, and some of their values are kept for a comparison between ranks.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import TensorWeakRef

from ddpprof.model import UnaveragedParameters
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
    def __init__(self) -> None:
        self._called: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._candidates: list[_Candidate] = []
        self._found: tuple[UnaveragedParameters, ...] = ()

    def is_called(self, ddp: DistributedDataParallel) -> None:
        """Note a forward of a DDP module with gradients."""
        self._called.add(ddp)

    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def first_look(self, step: int) -> None:
        """Note which parameters may be trained without being averaged. Call this between two steps."""
        uncalled = [ddp for ddp in ddp_modules() if ddp not in self._called]
        averaged = known_to_ddp(self._called)
        optimized = self._optimized()
        candidates = []
        for ddp in uncalled:
            own = {name: one for name, one in ddp.module.named_parameters() if id(one) in optimized}
            named = {name: one for name, one in own.items() if id(one) in known_to_ddp([ddp]) - averaged}
            candidates.append(_candidate(type(ddp.module).__name__, named, ddp, step))
        elsewhere = known_to_ddp(ddp_modules(), with_frozen=True)
        forgotten = [one for key, one in optimized.items() if key not in elsewhere]
        if forgotten and ddp_modules():
            candidates += [_candidate(name, named, None, step) for name, named in _named(forgotten).items()]
        self._candidates = [one for one in candidates if one is not None]

    def second_look(self, step: int) -> None:
        """Keep those that have been trained since the first look. Call this between two steps."""
        candidates, self._candidates = self._candidates, []
        if not candidates or step <= candidates[0].step:
            self._candidates = candidates
            return
        found: list[UnaveragedParameters] = []
        for one in candidates:
            ddp, trained = None if one.ddp is None else one.ddp(), one.trained()
            if trained is None or not trained[0] or (ddp is not None and ddp in self._called):
                continue
            read = some_to_read(trained[1])
            values = replica(len(found), (one.step, one.values), (step, values_of(read)), read)
            if values is not None:
                found.append(UnaveragedParameters(one.module, tuple(trained[0]), ddp is not None, values))
        self._found = tuple(found)

    def facts(self) -> dict[str, Any]:
        """Return fields of the `Record`."""
        return {"unaveraged": self._found}

    def _optimized(self) -> dict[int, torch.Tensor]:
        """Return the parameters of all optimizers that have taken a step, by their identity."""
        optimizers = [one for reference in self._optimizers.values() if (one := reference()) is not None]
        groups = (group["params"] for one in optimizers for group in one.param_groups)
        return {id(one): one for group in groups for one in group if one.requires_grad}


def _candidate(
    module: str, named: dict[str, torch.Tensor], ddp: DistributedDataParallel | None, step: int
) -> _Candidate | None:
    """Return what is to be looked at again; ``None`` if none of the parameters can be read."""
    parameters = list(named.values())
    read = some_to_read(parameters)
    if not read:
        return None
    references, versions = [TensorWeakRef(one) for one in parameters], [one._version for one in parameters]
    reference = None if ddp is None else weakref.ref(ddp)
    return _Candidate(module, list(named), references, versions, reference, step, values_of(read))


def _named(parameters: Sequence[torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Return parameters by the class of the largest module that has them, and by their names in it."""
    wanted, named = {id(one): one for one in parameters}, dict[str, dict[str, torch.Tensor]]()
    for module in sorted(_living_modules(), key=lambda one: -len(list(one.modules()))):
        own = {name: one for name, one in module.named_parameters() if id(one) in wanted}
        if own:
            named.setdefault(type(module).__name__, {}).update(own)
            wanted = {key: one for key, one in wanted.items() if all(one is not other for other in own.values())}
    if wanted:
        named[""] = {f"shape {tuple(one.shape)}": one for one in wanted.values()}
    return named


def _living_modules() -> Iterable[nn.Module]:
    """Yield all modules. `isinstance` would ask for ``__class__``, to which some objects warn."""
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
