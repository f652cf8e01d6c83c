"""How many processes the kernel has killed for lack of memory, in one control group or on the machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ddpprof.linux_files import own_groups
from ddpprof.record import exits
from ddpprof.record.exits import OomKills


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system whose files a test writes."""
    monkeypatch.setattr(exits, "OF_MACHINE", tmp_path / "vmstat")
    monkeypatch.setattr(exits, "own_groups", partial(own_groups, root=tmp_path))
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
