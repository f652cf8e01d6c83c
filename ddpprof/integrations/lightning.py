"""A callback for Lightning's Trainer."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ddpprof.record.api import CallbackRecording

_NAMES = ("lightning.pytorch", "pytorch_lightning")
"""names of the two packages that contain Lightning; classes of one package do not work with the other package"""

if TYPE_CHECKING:
    Callback = object
else:
    _used = next((name for name in _NAMES if name in sys.modules), None)
    Callback = import_module(_used or _NAMES[0]).Callback


class LightningCallback(Callback):
    """Record the training of ``trainer.fit`` into a run directory.

    Takes the same arguments as `ddpprof.profile`. Recording ends when training ends, even if an exception ends it.
    """

    def __init__(self, out: str, **options: Any) -> None:
        super().__init__()
        self._recording = CallbackRecording(out, **options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 (Lightning's signature)
        self._recording.begin()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._recording.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._recording.end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """End the recording if training ended without calls to the hooks above, as with Lightning's tuner."""
        self._recording.end()
