"""How many processes read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fleets import make_fleet

from ddpprof.pipeline import entry, workers
from ddpprof.pipeline.analysis import AnalysisOptions, analysed
from ddpprof.pipeline.entry import RankTask

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
    monkeypatch.setattr(workers, "available_bytes", lambda: available)
    assert workers._that_fit(largest) == number


@pytest.mark.parametrize(
    ("num_processes", "num_ranks", "divided"),
    [
        pytest.param(2, 1, (1, 2), id="one-rank"),
        pytest.param(2, 8, (2, 1), id="many-ranks"),
        pytest.param(16, 4, (4, 4), id="few-ranks"),
        pytest.param(16, 6, (6, 2), id="what-is-left-over-is-left"),
        pytest.param(64, 1, (1, 4), id="not-too-many"),
        pytest.param(1, 3, (1, 1), id="one-process"),
        pytest.param(4, 0, (1, 4), id="no-ranks"),
    ],
)
def test_where_ranks_are_few_several_processes_read_each(
    num_processes: int, num_ranks: int, divided: tuple[int, int]
) -> None:
    assert workers._divided(num_processes, num_ranks) == divided


def test_small_runs_start_no_process_even_if_ranks_have_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet(tmp_path / "fleet", 3)
    (fleet / "rank-1.trace.json.gz").unlink()
    monkeypatch.setattr(workers, "_run", lambda *_: pytest.fail("a pool was started"))
    with analysed(fleet) as analysis:
        assert len(analysis.report.ranks) == 3


def test_a_rank_that_memory_does_not_suffice_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, make_entry = make_fleet(tmp_path / "fleet", 3), entry.make_entry

    def too_large(task: RankTask, *others: Any) -> None:
        if task.files.rank == 1:
            raise MemoryError
        make_entry(task, *others)

    monkeypatch.setattr(entry, "make_entry", too_large)
    with analysed(fleet, AnalysisOptions(jobs=1)) as analysis:
        assert [rank.rank for rank in analysis.report.ranks] == [0, 2]
        assert any(text.startswith("rank 1: not enough memory") for text in analysis.report.missing)
