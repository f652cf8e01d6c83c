"""A callback for the Trainer of Hugging Face Transformers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ddpprof.record.api import CallbackRecording

if TYPE_CHECKING:
    TrainerCallback = object
else:
    TrainerCallback = import_module("transformers").TrainerCallback


class TransformersCallback(TrainerCallback):
    """Record a call to ``trainer.train()`` into a run directory.

    Takes the same arguments as `ddpprof.profile`. Recording ends when training ends. The Trainer does not report
    exceptions to callbacks: if an exception ends training, recording ends when ``train()`` is called again or when
    the process exits.
    """

    def __init__(self, out: str, **options: Any) -> None:
        super().__init__()
        self._recording = CallbackRecording(out, **options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:  # noqa: ARG002 (as called)
        self._recording.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:  # noqa: ARG002
        self._recording.end()
