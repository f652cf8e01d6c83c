"""What is wrapped: methods of frameworks that save, and what torch.compile is to leave alone."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import traceback
from pathlib import Path
from types import CodeType, ModuleType

import pytest
import torch._dynamo.trace_rules as rules
from torch.distributed import destroy_process_group

from ddpprof.model.overdue import WORK_WAIT, Frame, collective_of
from ddpprof.model.pulse import Activity
from ddpprof.record import optimizer_hooks, patches
from ddpprof.record.events import Events, Listener, binding
from ddpprof.record.patches import _old_checkpoints, lists_of_old_checkpoints, saving_methods
from ddpprof.record.session import WatchedSteps, keep_out_of_compiled_graphs


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


class Discards(Listener):
    def __init__(self, discards: bool) -> None:
        self._discards = discards

    def discards_checkpoints(self) -> bool:
        return self._discards


@pytest.mark.parametrize(("discards", "found"), [(False, ["checkpoint-1"]), (True, [])])
def test_old_checkpoints_are_hidden_from_a_trainer_that_may_not_delete(
    discards: bool, found: list[str], events: Events
) -> None:
    events.bind(binding([Discards(discards)], pytest.fail))
    assert _old_checkpoints(OlderTrainer._sorted_checkpoints)(OlderTrainer()) == found


def test_only_hooks_that_a_compiled_optimizer_contains_are_compiled() -> None:
    keep_out_of_compiled_graphs()
    codes: tuple[CodeType, ...] = (patches._forward.__code__, WatchedSteps.forward_begins.__code__)
    assert all(rules.check(code) for code in codes)
    assert not rules.check(optimizer_hooks.hook_optimizers.__code__)


def test_a_stack_shows_that_a_rank_waits_for_what_it_started_before() -> None:
    """As in ``dist.all_reduce(tensor, async_op=True).wait()``, which ddpprof wraps."""
    stacks = []

    def original(_work: object) -> None:
        stacks.append([Frame(one.filename, one.lineno or 0, one.name) for one in traceback.extract_stack()[:-1]])

    patches._waits_for_ranks(original)(object())
    assert collective_of(stacks[0]) == WORK_WAIT


def test_files_that_were_not_written_can_be_renamed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rename", "replace", "remove", "unlink"):
        monkeypatch.setattr(os, name, getattr(os, name))  # restores it afterwards
    monkeypatch.setattr(patches, "_unwritten", set())
    kept, other = tmp_path / "last.pt", tmp_path / "log.txt"
    kept.write_text("kept")
    other.write_text("a log")
    patches.leave_unwritten(tmp_path / "last.pt.tmp")
    os.replace(f"{kept}.tmp", kept)
    assert kept.read_text() == "kept"
    kept.unlink()
    assert kept.exists(), "it stands for the file that was not written"
    other.replace(tmp_path / "old.txt")
    (tmp_path / "old.txt").unlink()
    assert [one.name for one in tmp_path.iterdir()] == ["last.pt"]
    with pytest.raises(FileNotFoundError):
        os.remove(tmp_path / "never.pt")  # noqa: PTH107


def test_the_end_of_the_process_group_pauses_however_the_script_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's threads release their Python objects during the pause."""
    paused: list[float] = []
    monkeypatch.setattr(patches, "sleep", paused.append)
    update = patches._pausing_at_end(lambda group: f"set to {group}")
    assert (update("a group"), paused) == ("set to a group", [])
    assert (update(None), paused) == ("set to None", [patches._PAUSE_S])
    code = inspect.unwrap(destroy_process_group).__code__
    assert "_update_default_pg" in code.co_names


class Activities(Listener):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def begins(self, activity: int) -> None:
        self.seen.append(activity)


@pytest.mark.parametrize("trains_here", [True, False])
def test_the_start_of_workers_is_time_spent_waiting_for_data(
    trains_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, activities = Events(), Activities()
    events.training_thread = threading.get_ident() if trains_here else None
    events.bind(binding([activities], lambda _: None))
    monkeypatch.setattr(patches, "EVENTS", events)
    begin = patches._iter(lambda _: activities.seen.append(-1))
    begin(object())
    assert activities.seen == ([Activity.DATA, -1, Activity.OTHER] if trains_here else [-1])
