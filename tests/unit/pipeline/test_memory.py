"""How much memory is left, by files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.pipeline.memory import available_bytes

GB = 10**9


def written(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


SYSTEM = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {64 * GB // 1024} kB\n"}
JOB = "sys/fs/cgroup/slurm/job_1"
V2 = {
    **SYSTEM,
    "proc/self/cgroup": "0::/slurm/job_1/step_0\n",
    "sys/fs/cgroup/slurm/job_1/step_0/memory.max": "max\n",
    "sys/fs/cgroup/slurm/job_1/step_0/memory.current": f"{GB}\n",
    f"{JOB}/memory.max": f"{8 * GB}\n",
    f"{JOB}/memory.current": f"{7 * GB}\n",
    f"{JOB}/memory.stat": f"anon {GB}\ninactive_file {5 * GB}\n",
}
V1 = {
    **SYSTEM,
    "proc/self/cgroup": "9:cpu,cpuacct:/a\n5:memory:/slurm/job_1\n0::/\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes": f"{4 * GB}\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes": f"{GB}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GB}\n",
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
    "sys/fs/cgroup/memory.max": f"{2 * GB}\n",
    "sys/fs/cgroup/memory.current": f"{GB}\n",
}


@pytest.mark.parametrize(
    ("files", "left_gb"),
    [
        pytest.param(SYSTEM, 64, id="no-groups"),
        pytest.param(V2, 6, id="a-group-around-ours-less-what-it-could-forget"),
        pytest.param(V1, 3, id="version-1"),
        pytest.param(CONTAINER, 1, id="container"),
        pytest.param(CONTAINER_V1, 0.4, id="container-of-version-1-which-sees-its-own-group-as-the-root"),
        pytest.param({**CONTAINER, "sys/fs/cgroup/memory.current": f"{3 * GB}"}, 0, id="more-than-there-is"),
    ],
)
def test_the_least_that_is_left_counts(tmp_path: Path, files: dict[str, str], left_gb: float) -> None:
    assert available_bytes(written(tmp_path, files)) == pytest.approx(left_gb * GB, abs=1024)


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
