"""How long the limit of a control group keeps its processes from running."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ddpprof.linux_files import own_groups
from ddpprof.model import UNKNOWN
from ddpprof.record import machine


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    machine._throttling.cache_clear()
    yield
    machine._throttling.cache_clear()


@pytest.mark.parametrize(
    ("group", "folder", "content", "expected_ns"),
    [
        pytest.param("0::/job", "job", "usage_usec 9\nthrottled_usec 7\n", 7000, id="version-2"),
        pytest.param("4:cpu,cpuacct:/job", "cpu/job", "nr_throttled 1\nthrottled_time 7\n", 7, id="version-1"),
        pytest.param("0::/", ".", "usage_usec 9\n", UNKNOWN, id="no-limit"),
        pytest.param("5:memory:/job", "memory/job", "throttled_time 7\n", UNKNOWN, id="another-controller"),
    ],
)
def test_throttling(
    group: str, folder: str, content: str, expected_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "own_groups", partial(own_groups, root=tmp_path))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    (tmp_path / "sys/fs/cgroup" / folder).mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup" / folder / "cpu.stat").write_text(content)
    assert machine.Throttling().total_ns() == expected_ns


def test_a_process_that_is_put_into_another_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others suffered in that group before is not its own."""
    monkeypatch.setattr(machine, "own_groups", partial(own_groups, root=tmp_path))
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc/self")
    (tmp_path / "proc/self").mkdir(parents=True)
    throttling = machine.Throttling()
    totals = []
    for group, throttled in (("a", 5), ("a", 6), ("b", 900), ("b", 904)):
        (tmp_path / "proc/self/cgroup").write_text(f"4:cpu:/{group}\n")
        (tmp_path / "sys/fs/cgroup/cpu" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup/cpu" / group / "cpu.stat").write_text(f"throttled_time {throttled}\n")
        totals.append(throttling.total_ns())
    assert totals == [5, 6, 6, 10]
