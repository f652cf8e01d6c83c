"""ddpprof reads the state of a process, and the control groups of this one, whatever names these have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.linux_files import (
    CoreTicks,
    ProcessStat,
    available_bytes,
    cpu_quota,
    is_frozen,
    number_in,
    own_groups,
    stat_of,
    threads_per_core,
    ticks_of,
)


def test_numbers_by_name(tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_text(
        "Name:\t\N{SNOWMAN} 5\nVmSwap:\t  12 kB\nVmHWM: 7 kB\nTracerPid:\t\nThreads:\tmany\npswpin 3\npswpinned 4\n"
    )
    assert [number_in(path, name) for name in ("VmSwap:", "VmHWM:", "pswpin")] == [12, 7, 3]
    assert [number_in(path, name) for name in ("TracerPid:", "Threads:", "VmPeak:")] == [None] * 3
    assert number_in(tmp_path / "absent", "pswpin") is None


def test_a_process_whatever_its_name_is(tmp_path: Path) -> None:
    """The names of these fields are those of proc_pid_stat(5)."""
    fields = ["ppid", "pgrp", "session", "tty_nr", "tpgid", "flags", "minflt", "cminflt", "majflt", "cmajflt"]
    fields += ["utime", "stime", "cutime", "cstime"]
    values = {name: number for number, name in enumerate(fields, 101)}
    (tmp_path / "stat").write_text(f"7 (a) S (b) D {' '.join(map(str, values.values()))} 0 0\n")
    ticks = values["utime"] + values["stime"]
    assert stat_of(tmp_path) == ProcessStat("a) S (b", "D", values["ppid"], values["majflt"], ticks)


@pytest.mark.parametrize("content", [None, "", "7 (a) S 1 2\n", f"7 (a) S {'x ' * 20}\n"])
def test_a_process_that_cannot_be_seen(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content)
    assert stat_of(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "groups"),
    [
        pytest.param("0::/slurm/job:1\n", ["slurm/job:1"], id="version-2"),
        pytest.param("9:cpuacct,cpu:/a\n5:memory:/b\n1:name=systemd:/c\n", ["cpuacct,cpu/a", "cpu/a"], id="version-1"),
        pytest.param("9:cpu:/a\n0::/b\n", ["cpu/a", "b"], id="both"),
        pytest.param("0::/\n", ["."], id="container"),
        pytest.param("no group\n", [], id="unreadable"),
        pytest.param(None, [], id="no-groups"),
    ],
)
def test_groups_of_a_controller(tmp_path: Path, content: str | None, groups: list[str]) -> None:
    if content is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(content)
    assert list(own_groups("cpu", tmp_path)) == [tmp_path / "sys/fs/cgroup" / group for group in groups]


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None, id="no-limit"),
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "250000 100000\n"}, 2.5, id="version-2"),
        pytest.param("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1.0, id="outer"),
        pytest.param(
            "9:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 0.5,
            id="version-1",
        ),
        pytest.param(
            "9:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None,
            id="version-1-no-limit",
        ),
        pytest.param("0::/a\n", {"a/cpu.max": "many\n"}, None, id="unreadable"),
    ],
)  # fmt: skip
def test_cores_that_a_control_group_may_use(
    tmp_path: Path, membership: str, files: dict[str, str], quota: float | None
) -> None:
    below = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    for name, content in {"proc/self/cgroup": membership, **below}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("siblings", "number"),
    [("0\n", 1), ("0,32\n", 2), ("0-1\n", 2), ("0-3,8-11\n", 8), ("none\n", None), (None, None)],
)
def test_threads_of_a_core(tmp_path: Path, siblings: str | None, number: int | None) -> None:
    folder = tmp_path / "sys/devices/system/cpu/cpu3/topology"
    folder.mkdir(parents=True)
    if siblings is not None:
        (folder / "thread_siblings_list").write_text(siblings)
    assert threads_per_core(3, tmp_path) == number


@pytest.mark.parametrize(
    ("membership", "files", "frozen"),
    [
        pytest.param("0::/a\n", {"a/cgroup.events": "populated 1\nfrozen 1\n"}, True, id="version-2"),
        pytest.param("0::/a\n", {"a/cgroup.events": "populated 1\nfrozen 0\n"}, False, id="runs"),
        pytest.param("5:freezer:/a\n", {"freezer/a/freezer.state": "FROZEN\n"}, True, id="version-1"),
        pytest.param("5:freezer:/a\n", {"freezer/a/freezer.state": "THAWED\n"}, False, id="thawed"),
        pytest.param("0::/a\n", {}, False, id="the-system-does-not-tell"),
    ],
)
def test_a_process_whose_group_is_frozen(membership: str, files: dict[str, str], frozen: bool, tmp_path: Path) -> None:
    for name, content in {"proc/77/cgroup": membership, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert is_frozen(77, tmp_path) is frozen


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


def test_this_machine_says_what_is_available() -> None:
    available = available_bytes()
    assert available is not None
    assert 10**6 < available < 10**14


def test_the_time_of_some_cores(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(
        "cpu  30 0 12 300 6 3 3 6 0 0\ncpu0 10 1 4 100 2 1 1 2 5 0\ncpu1 20 0 8 200 4 2 2 4 0 0\nintr 7 8\n"
    )
    assert ticks_of({0}, tmp_path) == CoreTicks(busy=10 + 1 + 4 + 1 + 1 + 2, total=121)
    assert ticks_of({0, 1}, tmp_path) == CoreTicks(busy=19 + 36, total=121 + 240)
    assert ticks_of({7}, tmp_path) is None
    assert ticks_of({0}, tmp_path / "absent") is None
