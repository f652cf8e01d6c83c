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
    assert machine.throttled_ns() == expected_ns
