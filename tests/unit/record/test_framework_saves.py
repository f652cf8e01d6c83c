"""ddpprof knows the methods by which frameworks write and delete checkpoints, so that a trial can leave them out."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from ddpprof.record.framework_saves import saving_methods


class Trainer:
    def save_model(self) -> str:
        return "saved"


def test_only_what_has_been_imported_and_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("transformers", "accelerate", "lightning")]:
        monkeypatch.delitem(sys.modules, name)
    assert list(saving_methods()) == []
    module = ModuleType("transformers.trainer")
    monkeypatch.setitem(sys.modules, "transformers.trainer", module)
    assert list(saving_methods()) == [], "still being imported"
    module.Trainer = Trainer  # type: ignore[attr-defined]
    assert list(saving_methods()) == [(Trainer, "save_model")], "this version has no other"
