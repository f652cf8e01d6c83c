"""Whose function makes the DDP module: seen on the stack."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ddpprof.record.environment import framework_at_work


def called_from(*modules: str) -> str | None:
    """The answer, asked in a function of the last module, which one of the module before has called."""
    call = framework_at_work
    for name in reversed(modules):
        namespace = {"__name__": name, "inner": call}
        exec("def outer():\n    return inner()", namespace)  # the caller's module is what counts
        call = namespace["outer"]  # type: ignore[assignment]
    return call()


@pytest.mark.parametrize(
    ("modules", "framework"),
    [
        pytest.param(("train",), None, id="the-script"),
        pytest.param(("train", "accelerate.accelerator"), "accelerate", id="accelerate"),
        pytest.param(("train", "accelerate.launchers"), None, id="only-launched"),
        pytest.param(("trl.trainer", "transformers.trainer", "accelerate.accelerator"), "transformers", id="trl"),
        pytest.param(("lightning.pytorch.trainer.trainer", "lightning.fabric.x"), "lightning", id="lightning"),
        pytest.param(("pytorch_lightning.trainer",), "lightning", id="by-its-old-name"),
        pytest.param(("train", "lightning.fabric.fabric"), "fabric", id="fabric"),
        pytest.param(("transformers.trainer_utils",), None, id="a-name-that-only-begins-so"),
    ],
)
def test_who_is_at_work(modules: tuple[str, ...], framework: str | None) -> None:
    assert called_from(*modules) == framework


def test_an_accelerator_that_made_the_module_before(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ModuleType("accelerate.state")
    state.AcceleratorState = SimpleNamespace(_shared_state={"backend": "gloo"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    assert called_from("train") == "accelerate"
