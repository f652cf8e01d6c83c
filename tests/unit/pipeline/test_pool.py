"""How many processes read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fleets import make_fleet

from ddpprof.pipeline import pool
from ddpprof.pipeline.analysis import AnalysisOptions, analysed
from ddpprof.pipeline.entry import RankTask
from ddpprof.pipeline.pool import available_bytes

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
    monkeypatch.setattr(pool, "available_bytes", lambda: available)
    assert pool._that_fit(largest) == number


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
    assert pool._divided(num_processes, num_ranks) == divided


def test_small_runs_start_no_process_even_if_ranks_have_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet(tmp_path / "fleet", 3)
    (fleet / "rank-1.trace.json.gz").unlink()
    monkeypatch.setattr(pool, "_run", lambda *_: pytest.fail("a pool was started"))
    with analysed(fleet) as analysis:
        assert len(analysis.report.ranks) == 3


def test_this_machine_says_what_is_available() -> None:
    available = available_bytes()
    assert available is not None
    assert 10**6 < available < 10**14


def test_a_rank_that_memory_does_not_suffice_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, make_entry = make_fleet(tmp_path / "fleet", 3), pool.make_entry

    def too_large(task: RankTask, *others: Any) -> None:
        if task.files.rank == 1:
            raise MemoryError
        make_entry(task, *others)

    monkeypatch.setattr(pool, "make_entry", too_large)
    with analysed(fleet, AnalysisOptions(jobs=1)) as analysis:
        assert [rank.rank for rank in analysis.report.ranks] == [0, 2]
        assert any(text.startswith("rank 1: too little memory") for text in analysis.report.missing)


GB_OF_MEMORY = 10**9


def written(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


SYSTEM = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {64 * GB_OF_MEMORY // 1024} kB\n"}
JOB = "sys/fs/cgroup/slurm/job_1"
V2 = {
    **SYSTEM,
    "proc/self/cgroup": "0::/slurm/job_1/step_0\n",
    "sys/fs/cgroup/slurm/job_1/step_0/memory.max": "max\n",
    "sys/fs/cgroup/slurm/job_1/step_0/memory.current": f"{GB_OF_MEMORY}\n",
    f"{JOB}/memory.max": f"{8 * GB_OF_MEMORY}\n",
    f"{JOB}/memory.current": f"{7 * GB_OF_MEMORY}\n",
    f"{JOB}/memory.stat": f"anon {GB_OF_MEMORY}\ninactive_file {5 * GB_OF_MEMORY}\n",
}
V1 = {
    **SYSTEM,
    "proc/self/cgroup": "9:cpu,cpuacct:/a\n5:memory:/slurm/job_1\n0::/\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes": f"{4 * GB_OF_MEMORY}\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes": f"{GB_OF_MEMORY}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GB_OF_MEMORY}\n",
}
CONTAINER_V1 = {
    **SYSTEM,
    "proc/self/cgroup": "5:memory:/docker/1f2e\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "700000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "300000000\n",
}
CONTAINER = {
    **SYSTEM,
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/memory.max": f"{2 * GB_OF_MEMORY}\n",
    "sys/fs/cgroup/memory.current": f"{GB_OF_MEMORY}\n",
}


@pytest.mark.parametrize(
    ("files", "left_gb"),
    [
        pytest.param(SYSTEM, 64, id="no-groups"),
        pytest.param(V2, 6, id="a-group-around-ours-less-what-it-could-forget"),
        pytest.param(V1, 3, id="version-1"),
        pytest.param(CONTAINER, 1, id="container"),
        pytest.param(CONTAINER_V1, 0.4, id="container-of-version-1-which-sees-its-own-group-as-the-root"),
        pytest.param({**CONTAINER, "sys/fs/cgroup/memory.current": f"{3 * GB_OF_MEMORY}"}, 0, id="more-than-there-is"),
    ],
)
def test_the_least_that_is_left_counts(tmp_path: Path, files: dict[str, str], left_gb: float) -> None:
    assert available_bytes(written(tmp_path, files)) == pytest.approx(left_gb * GB_OF_MEMORY, abs=1024)


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
