"""Calls through ``torch.distributed.rpc`` in the current step: whom, what, how long, how many bytes of tensors.

A profiler's trace does not have them: it loses marks that end in another thread than they began in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from msgspec import structs

from ddpprof.model import RpcCall
from ddpprof.record import patches

_MOST_CALLS = 2000
"""kept of one step; further ones are only counted"""
_MOST_THINGS = 1000
"""looked at for tensors in one call"""
_PROXIED = ("_local_invoke", "_local_invoke_async_execution")
"""torch's functions behind ``rref.rpc_sync().method()``; their second argument is the method"""


class RpcNotes:
    def __init__(self) -> None:
        self._calls: list[RpcCall] = []
        self.num_left_out = 0
        """calls beyond those that are kept"""

    def end_step(self) -> None:
        """Forget the step. Calls still under way go on in a list that nobody reads."""
        self._calls, self.num_left_out = [], 0

    def calls(self) -> tuple[RpcCall, ...]:
        """Return those of the step, as far as they have come."""
        return tuple(self._calls)

    def invoked(self, began_ns: int, future: Any, to: Any, func: Any, rpc_type: Any, args: Any, kwargs: Any) -> None:
        """A call was sent; its future completes with the answer."""
        if len(self._calls) >= _MOST_CALLS:
            self.num_left_out += 1
            return
        num_bytes = tensor_bytes((args, kwargs))
        call = RpcCall(_worker(to), _name(func, args), rpc_type.value, began_ns, None, num_bytes, None)
        calls, place = self._calls, len(self._calls)
        calls.append(call)

        def answered(done: Any) -> None:
            end_ns = time.time_ns()
            try:
                reply_bytes = tensor_bytes(done.value())
            except Exception:
                reply_bytes = None  # the call failed; that is the script's to see
            calls[place] = structs.replace(call, end_ns=end_ns, reply_bytes=reply_bytes)

        future.add_done_callback(answered)


def wrap_invoke(original: Callable[..., Any]) -> Callable[..., Any]:
    """For ``torch.distributed.rpc.api._invoke_rpc``, through which ``rpc_sync`` and ``rpc_async`` go."""

    def invoke_rpc(
        to: Any, func: Any, rpc_type: Any, args: Any = None, kwargs: Any = None, *rest: Any, **named: Any
    ) -> Any:
        session = patches.active()
        if session is None:
            return original(to, func, rpc_type, args, kwargs, *rest, **named)
        began = time.time_ns()
        future = original(to, func, rpc_type, args, kwargs, *rest, **named)
        session.rpc_invoked(began, future, to, func, rpc_type, args, kwargs)
        return future

    return invoke_rpc


def _worker(to: Any) -> str:
    """A call names its callee by name, number or ``WorkerInfo``."""
    if isinstance(to, str):
        return to
    return str(to.name) if hasattr(to, "name") else f"worker {to}"


def _name(func: Any, args: Any) -> str:
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or type(func).__name__
    return str(args[1]) if name in _PROXIED and args and len(args) > 1 else str(name)


def tensor_bytes(thing: Any) -> int:
    """Of all tensors in tuples, lists and dictionaries."""
    total, todo, num_seen = 0, [thing], 0
    while todo and num_seen < _MOST_THINGS:
        one = todo.pop()
        num_seen += 1
        if isinstance(one, torch.Tensor):
            total += one.numel() * one.element_size()
        elif isinstance(one, dict):
            todo.extend(one.values())
        elif isinstance(one, list | tuple):
            todo.extend(one)
    return total
