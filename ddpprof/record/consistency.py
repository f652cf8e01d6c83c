"""Check whether all ranks train the same model and call the same collectives.

The constructor of DDP broadcasts the parameters of rank 0. The parameters stay equal on all ranks as long as only
averaged gradients change them. To check this, ddpprof reads some parameter values twice per job, between two steps. It
does so only on CPU, because training would have to wait for an accelerator.

DDP averages gradients only in a backward pass that follows its own forward pass. If a script computes its losses from
``model.module``, the DDP module's forward pass never runs. An optimizer may also update parameters that do not belong
to any DDP module. In both cases, the parameters are checked twice for changes, and some of their values are kept to
compare ranks. Parameters outside any DDP module are first checked before their optimizer's first step, because the
ranks' values differ after that step.

A collective that a script calls on only some ranks, for example within ``if rank == 0:``, makes the job hang. ddpprof
parses only the main script, once, and reports only unambiguous cases: the script calls the collective in one place, the
call uses the default group, and the function has no other branch for other ranks.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import isfinite
from operator import ne
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import TensorWeakRef

from ddpprof.model import (
    CollectiveOfSomeRanks,
    OptimizerFacts,
    Replica,
    UnaveragedParameters,
    UntrainedParameters,
)
from ddpprof.model.overdue import COLLECTIVES_OF_ALL
from ddpprof.record.ddp_construction import ddp_modules, known_to_ddp
from ddpprof.record.events import EVENTS, Listener
from ddpprof.record.machine import PATIENCE_S, TrainingDevice
from ddpprof.record.optimizer_hooks import optimizer_facts

_MAX_PARAMETERS = 16
_MAX_VALUES = 8
"""maximum number of values that are sampled from each parameter"""


class ReplicaNotes:
    """Reads some parameter values of one rank's model replica, before and after the recorded steps."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = some_to_read([one for one in parameters if one.device.type == "cpu"])
        self._before: tuple[int, tuple[float, ...]] | None = None
        self._after: tuple[int, tuple[float, ...]] | None = None

    def recording_begins(self, step: int) -> None:
        """Read the values before step number `step`, which is the same on all ranks."""
        self._before = step, values_of(self._parameters)

    def recording_ends(self, step: int) -> None:
        self._after = step, values_of(self._parameters)

    def compared(self, module: int, num_unreduced_passes: int) -> Replica | None:
        """Return the values that were read; ``None`` if there is nothing to compare. `module`: index of the module."""
        if self._before is None or self._after is None or not self._parameters:
            return None
        return replica(module, self._before, self._after, self._parameters, num_unreduced_passes)


def replica(
    module: int,
    before: tuple[int, tuple[float, ...]],
    after: tuple[int, tuple[float, ...]],
    parameters: Sequence[torch.Tensor],
    num_unreduced_passes: int = 0,
) -> Replica | None:
    """Return a `Replica` with the values before and after the steps; ``None`` if any value is NaN or infinite.

    `before`, `after`: a step number and the values. `parameters`: the tensors from which the values were read.
    """
    if not all(map(isfinite, before[1] + after[1])):
        return None
    resolution = max(torch.finfo(parameter.dtype).eps for parameter in parameters)
    return Replica(module, (before[0], after[0]), before[1], after[1], resolution, num_unreduced_passes)


def some_to_read(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a few evenly spaced parameters, leaving out parameters that are not ordinary tensors."""
    read = [one for one in parameters if _can_be_read(one)]
    return read[:: -(-len(read) // _MAX_PARAMETERS) or 1]


def values_of(parameters: Sequence[torch.Tensor]) -> tuple[float, ...]:
    """Return a few evenly spaced values of each parameter."""
    flat = (parameter.detach().view(-1) for parameter in parameters)
    return tuple(value for one in flat for value in one[:: -(-len(one) // _MAX_VALUES) or 1].tolist())


def _can_be_read(parameter: torch.Tensor) -> bool:
    """Return True if the parameter is an ordinary dense floating-point tensor.

    Sharded tensors, for example, are not.
    """
    plain = type(parameter) in (torch.Tensor, torch.nn.Parameter) and type(parameter.data) is torch.Tensor
    is_dense = parameter.layout == torch.strided and parameter.is_contiguous()
    return plain and is_dense and parameter.is_floating_point() and not parameter.is_meta


_T = TypeVar("_T")


@dataclass(slots=True)
class _Candidate:
    """State, at the first check, of a module's parameters that may be trained without averaging."""

    module: str
    names: list[str]
    parameters: list[TensorWeakRef]
    versions: list[int]
    """value of PyTorch's version counter (``Tensor._version``) of each parameter"""
    ddp: weakref.ref[DistributedDataParallel] | None
    step: int
    values: tuple[float, ...]
    gradients: list[tuple[int, int] | None]
    """identity and version of each parameter's gradient: see `_gradient`"""

    def trained(self) -> tuple[list[str], list[torch.Tensor]] | None:
        """Return the names of the parameters that have changed, and all parameters.

        Returns ``None`` if any parameter no longer exists.
        """
        now = [reference() for reference in self.parameters]
        if any(one is None for one in now):
            return None
        named = zip(self.names, now, self.versions, strict=True)
        return [name for name, one, version in named if one is not None and one._version != version], now


class Unaveraged(Listener):
    """Finds parameters that are trained but not averaged by DDP, and parameters that are averaged but not trained."""

    def __init__(self, device: TrainingDevice) -> None:
        self._num_steps = 0
        self._device = device
        self._called: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """optimizers that have taken at least one step"""
        self._candidates: list[_Candidate] = []
        self._has_looked = False
        self._found: tuple[UnaveragedParameters, ...] = ()
        self._may_be_untrained: list[_Candidate] = []
        self._untrained: tuple[UntrainedParameters, ...] = ()
        self._described: tuple[OptimizerFacts, ...] | None = None

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        if torch.is_grad_enabled():
            self._called.add(ddp)

    def step_ends(self, num_steps: int) -> None:
        self._num_steps = num_steps

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Store the optimizer's parameters that belong to no DDP module, once training has begun."""
        if EVENTS.training_thread is None or self._has_looked or optimizer in self._optimizers or not ddp_modules():
            return
        with suppress(Exception):  # modules of the script may be incomplete
            known = known_to_ddp(ddp_modules(), with_frozen=True)
            forgotten = [one for one in _trained_by([optimizer]) if id(one) not in known]
            for module, named in _named_by_module(forgotten).items():
                self._candidates += self._candidate(module, named, None, self._num_steps)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.add(optimizer)

    optimizer_skipped = optimizer_ends

    def first_look(self, step: int) -> None:
        """Store the parameters of DDP modules that have not been called, and parameters that belong to no optimizer.

        Call this between two steps.
        """
        self._has_looked = True
        self._described = optimizer_facts(self._optimizers)
        with suppress(Exception):  # modules of the script may be incomplete
            averaged = known_to_ddp(self._called)
            optimized = {id(one) for one in _trained_by(list(self._optimizers))}
            for ddp in ddp_modules():
                known = known_to_ddp([ddp])
                missed = known - optimized if ddp in self._called else (known & optimized) - averaged
                parameters = ddp.module.named_parameters()
                named = {name: one for name, one in parameters if id(one) in missed and one.requires_grad}
                found = self._candidate(type(ddp.module).__name__, named, ddp, step)
                if ddp not in self._called:
                    self._candidates += found
                elif known & optimized:  # without any, an optimizer may train copies of them
                    self._may_be_untrained += found
            for module, named in _named_by_module(self._with_gradients(optimized)).items():
                self._may_be_untrained += self._candidate(module, named, None, step)

    def second_look(self, step: int) -> None:
        """Find which stored parameters have been trained since the first check. Call this between two steps."""
        if not self._has_looked or all(step <= one.step for one in (*self._candidates, *self._may_be_untrained)):
            return
        self._untrained = tuple(self._still_untrained()) or self._untrained
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
        """Return the findings, as fields of the `Record`."""
        return {"unaveraged": self._found, "untrained": self._untrained, "optimizers": self._described}

    def _with_gradients(self, optimized: Set[int]) -> list[torch.Tensor]:
        """Return the parameters outside DDP modules that have gradients but belong to no optimizer."""
        known = known_to_ddp(ddp_modules(), with_frozen=True) | optimized
        owned = (one for module in _all_of(nn.Module) for one in vars(module).get("_parameters", {}).values())
        return [one for one in owned if one is not None and _gradient(one) is not None and id(one) not in known]

    def _still_untrained(self) -> Iterator[UntrainedParameters]:
        """Yield the parameters that have not changed since the first check, and that no optimizer can change."""
        candidates, self._may_be_untrained = self._may_be_untrained, []
        optimizers = _all_of(torch.optim.Optimizer) if candidates else []  # some may not have taken a step
        optimized = {id(one) for one in _trained_by(optimizers)}
        held = {id(one) for one in _trained_by(optimizers, with_rate=False)}
        for one in candidates:
            now = [parameter for reference in one.parameters if (parameter := reference()) is not None]
            ids = {*map(id, now)}
            is_same = len(now) == len(one.names) and all(
                parameter._version == version or id(parameter) in held  # an update by 0 also increases the version
                for parameter, version in zip(now, one.versions, strict=True)
            )
            is_trained = ids & optimized or not is_same or self._values_of(some_to_read(now)) != one.values
            has_new = one.ddp is not None or all(map(ne, one.gradients, map(_gradient, now)))
            if not is_trained and has_new:
                num_bytes = sum(parameter.nbytes for parameter in now)
                yield UntrainedParameters(one.module, tuple(one.names), num_bytes, one.ddp is not None, ids <= held)

    def _candidate(
        self, module: str, named: dict[str, torch.Tensor], ddp: DistributedDataParallel | None, step: int
    ) -> Iterator[_Candidate]:
        """Yield the parameters for the second check, if any parameter can be read."""
        parameters = list(named.values())
        read = some_to_read(parameters)
        values = self._values_of(read)
        if values:
            references, versions = [TensorWeakRef(one) for one in parameters], [one._version for one in parameters]
            reference = None if ddp is None else weakref.ref(ddp)
            gradients = list(map(_gradient, parameters))
            yield _Candidate(module, list(named), references, versions, reference, step, values, gradients)

    def _values_of(self, parameters: Sequence[torch.Tensor]) -> tuple[float, ...] | None:
        """Return a few values of each parameter, or ``None`` if the accelerator does not become idle in time."""
        kinds = {one.device.type for one in parameters} - {"cpu"}
        if kinds and not (kinds == {self._device.type} and self._device.comes_to_rest(PATIENCE_S)):
            return None
        return values_of(parameters)


def _trained_by(optimizers: Sequence[torch.optim.Optimizer], *, with_rate: bool = True) -> list[torch.Tensor]:
    """Return the optimizers' parameters that require gradients and, by default, have a learning rate other than 0.

    The list has no duplicates. `with_rate`: if False, return the parameters whose learning rate is 0.
    """
    groups = (group for one in optimizers for group in one.param_groups if _has_rate(group) == with_rate)
    return list({id(one): one for group in groups for one in group["params"] if one.requires_grad}.values())


def _has_rate(group: dict[str, Any]) -> bool:
    """Return False if the group's learning rate is 0. A rate in a tensor is not read."""
    rate = group.get("lr")
    return not isinstance(rate, int | float) or rate != 0


def _named_by_module(parameters: Sequence[torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Group parameters by the class of the outermost module that contains them, and by their names in that module."""
    wanted, named = {id(one): one for one in parameters}, dict[str, dict[str, torch.Tensor]]()
    having = (
        [(module, own) for module in _all_of(nn.Module) if (own := _own_parameters(module, wanted))] if wanted else []
    )
    for module, own in sorted(having, key=lambda one: (-len(one[1]), -len("".join(one[1])))):
        left = {name: one for name, one in own.items() if wanted.pop(id(one), None) is not None}
        if left:
            named.setdefault(type(module).__name__, {}).update(left)
    if wanted:
        named[""] = {f"shape {tuple(one.shape)}": one for one in wanted.values()}
    return named


def _all_of(kind: type[_T]) -> list[_T]:
    """Return all objects of this class in the process. With 400,000 objects, this takes less than 0.1 s."""
    kinds: set[type] = {kind}
    waiting: list[type] = [kind]
    while waiting:
        new: set[type] = set(type.__subclasses__(waiting.pop())) - kinds
        kinds |= new
        waiting += new
    # `isinstance` would access ``__class__``, which makes some objects print warnings.
    return [one for one in gc.get_objects() if type(one) in kinds]


def _gradient(parameter: torch.Tensor) -> tuple[int, int] | None:
    """Return the identity and version of the parameter's gradient; ``None`` if it has none."""
    return None if parameter.grad is None else (id(parameter.grad), parameter.grad._version)


def _own_parameters(module: nn.Module, wanted: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the module's parameters in `wanted` by name; empty if the module is not fully constructed."""
    with suppress(Exception):
        return {name: one for name, one in module.named_parameters() if id(one) in wanted}
    return {}


_MOST_BYTES = 100_000
"""maximum size in bytes of a script that is parsed; parsing such a script takes less than 0.1 s"""
_RANK_NAMES = frozenset({"rank", "global_rank"})
"""variable names for the global rank. Names for local ranks are left out, because on each host one rank has local rank
0
"""
_RANK_WORDS = re.compile(r"rank|main_process|master", re.IGNORECASE)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = b"\\'\"abfnrtvxuUN01234567\r\n"
_NAMES = ast.Name | ast.Attribute
_GROUP_ARGUMENTS = frozenset({"group", "process_group", "pg", None})
"""names of arguments that may be a process group; ``None`` stands for ``**kwargs``"""
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
"""statements that leave a block early; the rest of the function may then run on only some ranks"""
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@cache
def of_main_script() -> tuple[CollectiveOfSomeRanks, ...]:
    """Return the collectives that the running script calls on only some ranks; empty if the script cannot be parsed."""
    try:
        path = Path(str(sys.modules["__main__"].__file__))
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return ()
        content = path.read_bytes()
        if not any(name.encode() in content for name in COLLECTIVES_OF_ALL):
            return ()
        return tuple(collectives_of_some_ranks(ast.parse(without_warnings(content)), path.name))
    except Exception:  # training must continue, whatever the script contains
        return ()


def without_warnings(source: bytes) -> bytes:
    """Return the source with its invalid escape sequences replaced, so that parsing it prints no warnings.

    Python has already printed these warnings, and they cannot be switched off for a single thread.
    """
    return _ESCAPE.sub(lambda found: found[0] if found[1] in _ESCAPED else b"\\" + found[0], source)


def collectives_of_some_ranks(script: ast.Module, file: str) -> Iterator[CollectiveOfSomeRanks]:
    """Yield the collectives of a script that only some of the ranks call."""
    names = _names_of_distributed(script)
    calls = (one for one in ast.walk(script) if isinstance(one, ast.Call))
    collectives = {call: name for call in calls if (name := _collective(call, names)) is not None}
    num_calls = Counter(collectives.values())
    for function in (one for one in ast.walk(script) if isinstance(one, _Function)):
        branches = [one for one in _own_nodes(function.body) if isinstance(one, ast.If) and _mentions_ranks(one.test)]
        if len({ast.unparse(one.test) for one in branches}) != 1:
            continue  # another branch may be for the other ranks
        for branch in branches:
            nodes = list(_own_nodes(branch.body))
            if not _compares_rank(branch.test) or branch.orelse or any(isinstance(one, _LEAVES) for one in nodes):
                continue
            for call in (one for one in nodes if isinstance(one, ast.Call)):
                name = collectives.get(call)
                if name is not None and num_calls[name] == 1 and _is_of_default_group(call, name):
                    where = "" if isinstance(function, ast.Module) else f" in {function.name}"
                    yield CollectiveOfSomeRanks(name, f"{file}:{call.lineno}{where}", ast.unparse(branch.test))


def _own_nodes(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield all nodes of a body except nodes of nested functions and classes, because they run at a different time."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            waiting.extend(ast.iter_child_nodes(node))


def _names_of_distributed(script: ast.Module) -> dict[str, str]:
    """Map each imported name to its function in ``torch.distributed``, or to ``""`` if it names the module itself."""
    names = {"torch.distributed": ""}
    for node in ast.walk(script):
        if isinstance(node, ast.Import):
            names |= {one.asname: "" for one in node.names if one.name == "torch.distributed" and one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            names |= {one.asname or one.name: "" for one in node.names if one.name == "distributed"}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch.distributed":
            names |= {one.asname or one.name: one.name for one in node.names}
    return names


def _collective(call: ast.Call, names: dict[str, str]) -> str | None:
    """Return the name of the collective that is called; ``None`` if the call is not a collective."""
    if isinstance(call.func, ast.Attribute) and names.get(ast.unparse(call.func.value)) == "":
        name = call.func.attr
    elif isinstance(call.func, ast.Name):
        name = names.get(call.func.id, "")
    else:
        return None
    return name if name in COLLECTIVES_OF_ALL else None


def _mentions_ranks(test: ast.expr) -> bool:
    names = (one.id if isinstance(one, ast.Name) else one.attr for one in ast.walk(test) if isinstance(one, _NAMES))
    return any(_RANK_WORDS.search(name) for name in names)


def _compares_rank(test: ast.expr) -> bool:
    """Return True if the test compares the rank with a number, as in ``rank == 0``."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
        return False
    left, right = test.left, test.comparators[0]
    if not isinstance(right, ast.Constant) or type(right.value) is not int:
        return False
    if isinstance(left, ast.Call):
        return not left.args and not left.keywords and ast.unparse(left.func).rpartition(".")[2] == "get_rank"
    return isinstance(left, _NAMES) and ast.unparse(left).rpartition(".")[2] in _RANK_NAMES


def _is_of_default_group(call: ast.Call, name: str) -> bool:
    most = 0 if name in ("barrier", "monitored_barrier") else 2
    by_position = len(call.args) <= most and not any(isinstance(one, ast.Starred) for one in call.args)
    return by_position and not any(one.arg in _GROUP_ARGUMENTS for one in call.keywords)
