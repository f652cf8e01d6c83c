"""torchrun's options, the variables of its ranks, and what is seen of ranks that end."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from ddpprof.linux_files import own_groups
from ddpprof.load.record import load_exits
from ddpprof.record import torchrun
from ddpprof.record.api import _EarlyEnd
from ddpprof.record.settings import Settings
from ddpprof.record.torchrun import OPTIONS, OomKills, give_back_rank, launcher_variables


def installed() -> dict[tuple[str, ...], bool]:
    """torchrun's options: every name of each, and whether it takes a value."""
    run = pytest.importorskip("torch.distributed.run", reason="needs torch")
    actions = run.get_args_parser()._actions
    ours_too = {"-h", "-m"}
    return {
        tuple(sorted(action.option_strings)): action.nargs != 0
        for action in actions
        if action.option_strings and not ours_too & set(action.option_strings)
    }


def test_the_table_is_torchruns() -> None:
    table, theirs = {tuple(sorted(names)): takes_value for names, takes_value in OPTIONS}, installed()
    if ("--print-completion", "--print_completion") not in theirs:  # a torch before 2.14, with fewer options
        table = {names: takes_value for names, takes_value in table.items() if names in theirs}
    assert table == theirs


def test_no_option_takes_several_values() -> None:
    run = pytest.importorskip("torch.distributed.run", reason="needs torch")
    several = [
        action.option_strings
        for action in run.get_args_parser()._actions
        if action.option_strings and action.nargs not in (None, 0) and not isinstance(action, argparse._HelpAction)
    ]
    assert several == []


def test_no_option_of_torchrun_is_one_of_ddpprofs() -> None:
    names = [name for option, _ in OPTIONS for name in option]
    assert len(names) == len(set(names))


@pytest.fixture
def lightning() -> ModuleType:
    class LightningEnvironment:
        def __init__(self) -> None:
            self.creates_processes_externally = "LOCAL_RANK" in os.environ

    module = ModuleType("lightning")
    module.LightningEnvironment = LightningEnvironment
    return module


def test_lightning_does_not_see_a_trials_variables(lightning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in launcher_variables().items():
        monkeypatch.setenv(name, value)
    give_back_rank(lightning)
    assert os.environ["LOCAL_RANK"] == "0", "a script that does not use Lightning's launcher needs it"
    assert not lightning.LightningEnvironment().creates_processes_externally
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()
    monkeypatch.setenv("LOCAL_RANK", "1")  # as Lightning starts its second rank, or a script says it itself
    assert lightning.LightningEnvironment().creates_processes_externally


def test_variables_of_a_launcher_stay(lightning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    give_back_rank(lightning)
    assert lightning.LightningEnvironment().creates_processes_externally


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system whose files a test writes."""
    monkeypatch.setattr(torchrun, "OF_MACHINE", tmp_path / "vmstat")
    monkeypatch.setattr(torchrun, "own_groups", partial(own_groups, root=tmp_path))
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def test_the_own_group_counts_if_it_tells(system: Path) -> None:
    (system / "vmstat").write_text("oom_kill 100\n")
    (system / "proc/self/cgroup").write_text("4:memory:/elsewhere\n0::/jobs/mine\n")
    events = system / "sys/fs/cgroup/jobs/mine/memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("oom 2\noom_kill 1\noom_group_kill 0\n")
    kills = OomKills()
    (system / "vmstat").write_text("oom_kill 200\n")
    events.write_text("oom 4\noom_kill 3\noom_group_kill 0\n")
    assert [kills.since_last_time(), kills.since_last_time()] == [2, 0]


def test_else_the_machine_counts(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("4:memory:/jobs/mine\n")
    (system / "vmstat").write_text("nr_free_pages 9\noom_kill 3\n")
    kills = OomKills()
    (system / "vmstat").write_text("nr_free_pages 8\noom_kill 4\n")
    assert kills.since_last_time() == 1


@pytest.mark.parametrize("content", [None, "nr_free_pages 9\n", "oom_kill\n", "oom_kill many\n"])
def test_a_system_may_not_tell(content: str | None, system: Path) -> None:
    if content is not None:
        (system / "vmstat").write_text(content)
    kills = OomKills()
    assert kills.since_last_time() is None
    (system / "vmstat").write_text("oom_kill 4\n")
    assert kills.since_last_time() is None
    assert kills.since_last_time() == 0


def test_a_process_that_was_moved_to_another_machine_counts_from_there(system: Path) -> None:
    (system / "vmstat").write_text("oom_kill 40\n")
    kills = OomKills()
    (system / "vmstat").write_text("oom_kill 4\n")
    assert kills.since_last_time() == 0


def test_a_rank_that_fails_early_leaves_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Settings(str(tmp_path / "run")).to_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "1")
    torchrun.note_early_end(None)
    torchrun.append_exit(tmp_path / "run", {"pid": 9, "exit_code": 1})
    assert not (tmp_path / "run").exists()
    torchrun.note_early_end(FileNotFoundError(2, "No such file or directory", "train.bin"))
    torchrun.append_exit(tmp_path / "run", {"pid": 9, "exit_code": 1})
    first, second = load_exits(tmp_path / "run")
    assert (first.rank, first.pid, first.exit_code) == (1, os.getpid(), 1)
    assert first.error == "failed: FileNotFoundError: [Errno 2] No such file or directory: 'train.bin'"
    assert (second.pid, second.rank) == (9, None)


def test_a_process_that_is_no_rank_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Settings(str(tmp_path / "run")).to_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RANK", raising=False)
    torchrun.note_early_end(ValueError("no data"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("marked_by", "is_rank"), [(None, True), ("own", True), ("1", False)])
def test_a_program_that_a_rank_starts_is_no_rank(
    marked_by: str | None, is_rank: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("DDPPROF_RANK_PROCESS", "")  # so that it is as before in the end
    monkeypatch.delenv("DDPPROF_RANK_PROCESS")
    if marked_by is not None:
        monkeypatch.setenv("DDPPROF_RANK_PROCESS", str(os.getpid()) if marked_by == "own" else marked_by)
    assert _EarlyEnd().may_come == is_rank
