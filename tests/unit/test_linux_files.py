"""ddpprof reads the state of a process, and the control groups of this one, whatever names these have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.linux_files import ProcessStat, cpu_quota, is_frozen, number_in, own_groups, stat_of


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
