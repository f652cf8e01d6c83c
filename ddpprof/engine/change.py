"""The change that a finding recommends, as data that a tool can apply without reading English."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ddpprof.engine.frameworks import ddp_argument, load_with
from ddpprof.engine.predictions import NewBuckets

Value = bool | int | float | str | tuple[float, ...] | None


class ChangeKind(StrEnum):
    """Where a change is made."""

    DDP = "ddp"
    """in the arguments of ``DistributedDataParallel``"""
    COMM_HOOK = "comm_hook"
    """by registering a hook from torch's ``default_hooks``"""
    ENVIRONMENT = "environment"
    """by setting environment variables of the ranks"""
    LOADER = "loader"
    """in the arguments of a ``DataLoader``"""
    COMPILATION = "compilation"
    """in how torch.compile compiles DDP: ``optimize_ddp`` or ``compile_order``"""
    NO_SYNC = "no_sync"
    """in the training loop: only the last of ``num_passes`` backward passes reduces gradients"""


@dataclass(frozen=True, slots=True)
class Change:
    """One change that a user can make, and a tool can apply."""

    kind: ChangeKind
    values: Mapping[str, Value] = field(hash=False)
    """name of each argument, variable or hook → its value"""
    code: str
    """code of the change, for the framework that makes the DDP module if there is one"""
    is_lossy: bool = False
    """True if it rounds gradients"""


def ddp_change(framework: str | None, **arguments: Value) -> Change:
    """Return a change of DDP's constructor arguments."""
    written = [f"{name}={list(value) if isinstance(value, tuple) else value!r}" for name, value in arguments.items()]
    return Change(ChangeKind.DDP, arguments, ddp_argument(framework, *written))


def bucket_change(framework: str | None, new: NewBuckets) -> Change | None:
    """Return the change that makes those buckets; ``None`` if the best value is unknown."""
    if not new.argument or (new.predicted is None and not new.is_default):
        return None
    name, _, text = new.argument.partition("=")
    value = ast.literal_eval(text)
    return ddp_change(framework, **{name: tuple(value) if isinstance(value, list) else value})


def environment_change(**variables: str) -> Change:
    return Change(ChangeKind.ENVIRONMENT, variables, " ".join(f"{name}={value}" for name, value in variables.items()))


def loader_change(framework: str | None, num_workers: int, persistent: bool) -> Change:
    values: dict[str, Value] = {"num_workers": num_workers, **({"persistent_workers": True} if persistent else {})}
    return Change(ChangeKind.LOADER, values, load_with(framework, num_workers, persistent))


def compilation_change(optimize_ddp: str | None = None, compile_order: str | None = None) -> Change:
    """Return a change of how torch.compile compiles DDP, to one of these values."""
    if compile_order is not None:
        return Change(ChangeKind.COMPILATION, {"compile_order": compile_order}, _ORDERS[compile_order])
    code = f'torch._dynamo.config.optimize_ddp = "{optimize_ddp}", before DDP is constructed'
    return Change(ChangeKind.COMPILATION, {"optimize_ddp": optimize_ddp}, code)


_ORDERS = {
    "ddp_first": "torch.compile(DistributedDataParallel(model))",
    "model_first": "DistributedDataParallel(torch.compile(model))",
}
