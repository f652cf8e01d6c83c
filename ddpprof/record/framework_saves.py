"""Frameworks write and delete checkpoints by methods of their own, which this file lists and wraps.

They do nothing in steps whose result is discarded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from ddpprof.record import patches

_TRAINER = "Trainer", ("_save_checkpoint", "save_model")
_ACCELERATOR = "Accelerator", ("save_state", "save_model")
_STRATEGY = "Strategy", ("save_checkpoint", "remove_checkpoint")
_MODEL_CHECKPOINT = "ModelCheckpoint", ("_save_last_checkpoint",)  # which may be a link to another one
_METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "transformers.trainer": _TRAINER,
    "transformers.modeling_utils": ("PreTrainedModel", ("save_pretrained",)),
    "peft.peft_model": ("PeftModel", ("save_pretrained",)),
    "accelerate.accelerator": _ACCELERATOR,
    "lightning.pytorch.strategies.strategy": _STRATEGY,
    "lightning.pytorch.callbacks.model_checkpoint": _MODEL_CHECKPOINT,
    "pytorch_lightning.strategies.strategy": _STRATEGY,
    "pytorch_lightning.callbacks.model_checkpoint": _MODEL_CHECKPOINT,
    "lightning.fabric.strategies.strategy": ("Strategy", ("save_checkpoint",)),
    "lightning_fabric.strategies.strategy": ("Strategy", ("save_checkpoint",)),
}
"""module → class, and its methods"""


def install() -> None:
    """Wrap the methods of the frameworks that have been imported."""
    for owner, name in saving_methods():
        patches.wrap(owner, name, _save)
    for owner, name in lists_of_old_checkpoints():
        patches.wrap(owner, name, _old_checkpoints)


def saving_methods() -> Iterator[tuple[type, str]]:
    """Yield the class and the name of each of them, in frameworks that have been imported."""
    for module, (kind, names) in _METHODS.items():
        owner = getattr(sys.modules.get(module), kind, None)
        if owner is not None:
            yield from ((owner, name) for name in names if hasattr(owner, name))


def lists_of_old_checkpoints() -> Iterator[tuple[Any, str]]:
    """Yield the owner and the name of each function that lists the checkpoints which the Trainer deletes at its end."""
    trainer = sys.modules.get("transformers.trainer")
    for owner, name in ((trainer, "sort_checkpoints"), (getattr(trainer, "Trainer", None), "_sorted_checkpoints")):
        if hasattr(owner, name):
            yield owner, name


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = patches.active()
        if session is not None and not session.keeps_checkpoints(type(self).__name__):
            return None
        return original(self, *args, **kwargs)

    return save


def _old_checkpoints(original: Callable[..., Any]) -> Callable[..., Any]:
    def old_checkpoints(*args: Any, **kwargs: Any) -> Any:
        session = patches.active()
        if session is not None and not session.may_delete_checkpoints():
            return []
        return original(*args, **kwargs)

    return old_checkpoints
