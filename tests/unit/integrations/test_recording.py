"""A recording begins and ends with a framework's calls, whatever order they come in; frameworks are optional."""

from __future__ import annotations

import atexit
import sys
from types import ModuleType, TracebackType
from typing import Any

import pytest

from ddpprof import integrations
from ddpprof.errors import DdpprofError
from ddpprof.record import api
from ddpprof.record.api import CallbackRecording

Heard = list[tuple[str, Any]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """Keep the arguments that `ddpprof.profile` gets."""
    told: Heard = []

    class Profile:
        def __init__(self, out: str, *, steps: int = 5) -> None:
            self.about = (out, steps)

        def __enter__(self) -> None:
            told.append(("begin", self.about))

        def __exit__(self, kind: type | None, error: BaseException | None, _trace: TracebackType | None) -> None:
            assert kind is (None if error is None else type(error))
            told.append(("end", error))

    monkeypatch.setattr(api, "profile", Profile)
    return told


def test_from_beginning_to_end(heard: Heard) -> None:
    one = CallbackRecording("runs/a", steps=3)
    assert heard == []
    one.begin()
    one.end()
    one.end(ValueError())
    assert heard == [("begin", ("runs/a", 3)), ("end", None)]


def test_an_error_is_passed_on(heard: Heard) -> None:
    one, error = CallbackRecording("runs/a"), ValueError("of the training")
    one.begin()
    one.end(error)
    assert heard[1:] == [("end", error)]


def test_a_second_training_ends_the_first(heard: Heard) -> None:
    one = CallbackRecording("runs/a")
    one.begin()
    one.begin()
    assert [what for what, _ in heard] == ["begin", "end", "begin"]
    one.end()


def test_the_end_of_the_process_ends_it_with_what_ended_the_process(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    error = ValueError("of the script")
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    CallbackRecording("runs/a").begin()
    for function in registered:
        function()
    assert heard[1:] == [("end", error)]


def test_a_mistake_in_the_arguments_is_told_at_once(heard: Heard) -> None:
    with pytest.raises(TypeError, match="step"):
        CallbackRecording("runs/a", stepz=3)
    assert heard == []


@pytest.mark.parametrize(
    ("name", "module", "framework"),
    [
        ("LightningCallback", "lightning.pytorch", "lightning"),
        ("TransformersCallback", "transformers", "transformers"),
    ],
)
def test_without_the_framework_one_line_says_what_to_install(
    name: str, module: str, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"ddpprof.integrations.{framework}", raising=False)
    with pytest.raises(DdpprofError, match=f"^{name} needs {framework}. Install it with: pip install {framework}$"):
        getattr(integrations, name)


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_the_base_class_is_of_the_lightning_that_is_in_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has two names, under which its classes differ."""
    for one in ("lightning", "lightning.pytorch", "pytorch_lightning", "ddpprof.integrations.lightning"):
        monkeypatch.delitem(sys.modules, one, raising=False)
    used = ModuleType(name)
    used.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, used)
    assert integrations.LightningCallback.__bases__ == (used.Callback,)
    sys.modules.pop("ddpprof.integrations.lightning")


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = integrations.nothing
