"""Callbacks that record training in frameworks, each imported on first use.

    Trainer(callbacks=[ddpprof.integrations.LightningCallback("runs/a")])     # Lightning
    Trainer(callbacks=[ddpprof.integrations.TransformersCallback("runs/a")])  # Hugging Face

The callbacks take the same arguments as `ddpprof.profile`. ``ddpprof trace`` needs no callback, and takes precedence
over callbacks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ddpprof.errors import DdpprofError

if TYPE_CHECKING:
    from ddpprof.integrations.lightning import LightningCallback
    from ddpprof.integrations.transformers import TransformersCallback

__all__ = ["LightningCallback", "TransformersCallback"]

_HOME = {"LightningCallback": "lightning", "TransformersCallback": "transformers"}
"""callback → module that contains it; the module has the same name as the framework"""


def __getattr__(name: str) -> object:
    """Import a callback and its framework. Raises `DdpprofError` if the framework is not installed."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    framework = _HOME[name]
    try:
        return getattr(import_module(f"{__name__}.{framework}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("ddpprof"):
            raise
        raise DdpprofError(f"{name} needs {framework}. Install it with: pip install {framework}") from error
