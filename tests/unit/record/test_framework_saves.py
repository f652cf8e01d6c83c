"""ddpprof knows the methods by which frameworks write and delete checkpoints, so that a trial can leave them out."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ddpprof.record import patches
from ddpprof.record.patches import _old_checkpoints, lists_of_old_checkpoints, saving_methods


class Trainer:
    def save_model(self) -> str:
        return "saved"


class OlderTrainer(Trainer):
    def _sorted_checkpoints(self) -> list[str]:
        return ["checkpoint-1"]


def test_only_what_has_been_imported_and_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("transformers", "accelerate", "lightning")]:
        monkeypatch.delitem(sys.modules, name)
    assert list(saving_methods()) == []
    module = ModuleType("transformers.trainer")
    monkeypatch.setitem(sys.modules, "transformers.trainer", module)
    assert list(saving_methods()) == [], "still being imported"
    module.Trainer = Trainer  # type: ignore[attr-defined]
    assert list(saving_methods()) == [(Trainer, "save_model")], "this version has no other"


def test_what_lists_old_checkpoints_is_a_function_or_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("transformers.trainer")
    monkeypatch.setitem(sys.modules, "transformers.trainer", module)
    assert list(lists_of_old_checkpoints()) == []
    module.Trainer = OlderTrainer  # type: ignore[attr-defined]
    assert list(lists_of_old_checkpoints()) == [(OlderTrainer, "_sorted_checkpoints")]
    module.Trainer, module.sort_checkpoints = Trainer, list  # type: ignore[attr-defined]
    assert list(lists_of_old_checkpoints()) == [(module, "sort_checkpoints")]


@pytest.mark.parametrize(("may_delete", "found"), [(True, ["checkpoint-1"]), (False, [])])
def test_old_checkpoints_are_hidden_from_a_trainer_that_may_not_delete(
    may_delete: bool, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "_active", SimpleNamespace(may_delete_checkpoints=lambda: may_delete))
    assert _old_checkpoints(OlderTrainer._sorted_checkpoints)(OlderTrainer()) == found
