"""Which framework makes the DDP module and owns its options? The one with functions on the stack."""

from __future__ import annotations

import sys
from types import FrameType

_BY_MODULE = {
    "transformers.trainer": "transformers",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "lightning.fabric": "fabric",
    "lightning_fabric": "fabric",
    "accelerate.accelerator": "accelerate",
}
"""first match wins: transformers' Trainer uses Accelerate, and Lightning uses Fabric"""


def framework_at_work() -> str | None:
    """Return the framework at work now, or ``None`` if the script itself uses torch."""
    return _on_stack() or _holding_the_model()


def _holding_the_model() -> str | None:
    """Return ``"accelerate"`` if the script has an Accelerator, which is not on the stack during training."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    return "accelerate" if getattr(state, "_shared_state", None) else None


def _on_stack() -> str | None:
    found: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        found.update(module for module in _BY_MODULE if name == module or name.startswith(f"{module}."))
        frame = frame.f_back
    return next((framework for module, framework in _BY_MODULE.items() if module in found), None)
