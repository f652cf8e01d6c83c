"""Optimizer closures: they compute loss and gradients, which is not the optimizer's own work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def with_noted_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], begins: Callable[[], None], ends: Callable[[], None]
) -> tuple[Any, Any] | None:
    """Return arguments of ``Optimizer.step`` whose closure reports when it runs; ``None`` if they have no closure."""
    if len(args) > 1 and callable(args[1]):  # the first is the optimizer
        return (args[0], _noted(args[1], begins, ends), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _noted(kwargs["closure"], begins, ends)}
    return None


def _noted(closure: Callable[[], Any], begins: Callable[[], None], ends: Callable[[], None]) -> Callable[[], Any]:
    @functools.wraps(closure)
    def noted() -> Any:
        begins()
        try:
            return closure()
        finally:
            ends()

    return noted
