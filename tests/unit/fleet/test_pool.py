"""How many processes read."""

import multiprocessing
from pathlib import Path

import pytest
from fleets import make_fleet

from ddpprof.fleet import pool
from ddpprof.fleet.analysis import Choice, analysed

GB = 10**9


@pytest.mark.parametrize(
    ("available", "largest", "number"),
    [
        pytest.param(100 * GB, 10**6, 4, id="as-many-as-cores"),
        pytest.param(2 * GB, GB // 2, 2, id="as-memory-allows"),
        pytest.param(GB // 10, GB, 1, id="one-at-least"),
        pytest.param(None, GB, 4, id="not-known"),
    ],
)
def test_processes_are_as_many_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, available: int | None, largest: int, number: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(4)))
    monkeypatch.setattr(pool, "_available_bytes", lambda: available)
    assert pool._that_fit(largest) == number


def test_this_machine_says_what_is_available() -> None:
    available = pool._available_bytes()
    assert available is not None
    assert 10**6 < available < 10**14


def test_an_error_in_a_process_is_told_and_leaves_none_behind(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", 4)
    (fleet / "rank-1.facts.json").unlink()
    (fleet / "rank-1.facts.json").mkdir()  # what cannot be read is named, and nothing worse happens
    with analysed(fleet, Choice(jobs=2)) as analysis:
        assert any("rank-1.facts.json" in text for text in analysis.report.missing)
    assert multiprocessing.active_children() == []
