"""Every check of the machine passes on one that does, and fails on one that does not."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from ddpprof.doctor import checks
from ddpprof.doctor.checks import CheckResult, CheckStatus, Context
from ddpprof.linux_files import available_bytes, cpu_quota

Usage = namedtuple("Usage", "total used free")
Patch = pytest.MonkeyPatch
Run = Callable[[Context], Iterable[CheckResult]]


def context(gpus: int | None = None) -> Context:
    return Context(Path(), Path(), gpus)


def full_disk(patch: Patch) -> None:
    patch.setattr(shutil, "disk_usage", lambda _path: Usage(10**12, 10**12 - 10**6, 10**6))


def roomy_disk(patch: Patch) -> None:
    patch.setattr(shutil, "disk_usage", lambda _path: Usage(10**12, 0, 10**12))


def jumping_clock(patch: Patch) -> None:
    times = iter((10**18, 10**18 + 3 * 10**9))
    patch.setattr(time, "time_ns", lambda: next(times))


def groups_of(root: Path, content: str) -> Path:
    """Return the folder of control groups below `root`, where this process is in those that `content` tells."""
    groups = root / "sys/fs/cgroup"
    for folder in (root / "proc/self", groups):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(content)
    return groups


def cgroup(cpu_max: str, memory_max: str) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        root = Path(os.environ["CGROUP"])
        groups = groups_of(root, "0::/\n")
        (root / "proc/meminfo").write_text("MemAvailable: 64000000 kB\n")
        (groups / "cpu.max").write_text(cpu_max)
        (groups / "memory.max").write_text(memory_max)
        (groups / "memory.current").write_text("1000000000")
        patch.setattr(checks, "cpu_quota", partial(cpu_quota, root))
        patch.setattr(checks, "available_bytes", partial(available_bytes, root))
        patch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))

    return plant


def variable(name: str, value: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setenv(name, value)


def without_address(patch: Patch) -> None:
    patch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    patch.setattr(socket, "getaddrinfo", lambda *_: [(2, 1, 6, "", ("192.0.2.77", 0))])


def without_network(patch: Patch) -> None:
    patch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    patch.setattr(checks, "_INTERFACES", Path(os.environ["CGROUP"]))


CASES = [
    ("disk", checks.check_disk, full_disk, roomy_disk),
    ("shared-memory", checks.check_shared_memory, full_disk, roomy_disk),
    ("clock", checks.check_clock, jumping_clock, lambda _patch: None),
    ("cores", checks.check_limits, cgroup("150000 100000", "max"), cgroup("max 100000", "max")),
    ("memory", checks.check_limits, cgroup("max 100000", "1500000000"), cgroup("400000 100000", "max")),
    (
        "gloo-interface",
        checks.check_gloo_interface,
        variable("GLOO_SOCKET_IFNAME", "lo,eth77"),
        variable("GLOO_SOCKET_IFNAME", "lo"),
    ),
    ("gloo-interface", checks.check_gloo_interface, without_address, variable("GLOO_SOCKET_IFNAME", "lo")),
    (
        "nccl-interface",
        checks.check_nccl_interface,
        variable("NCCL_SOCKET_IFNAME", "=eth77"),
        variable("NCCL_SOCKET_IFNAME", "l"),
    ),
    ("nccl-interface", checks.check_nccl_interface, without_network, variable("NCCL_SOCKET_IFNAME", "^eth77")),
]


def answer(name: str, run: Run) -> CheckResult:
    (found,) = (one for one in run(context()) if one.name == name)
    return found


@pytest.mark.parametrize(
    ("name", "run", "fault", "health"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)]
)
def test_a_fault_is_told_from_health(
    name: str,
    run: Run,
    fault: Callable[[Patch], None],
    health: Callable[[Patch], None],
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    monkeypatch.setenv("CGROUP", str(tmp_path))
    with monkeypatch.context() as planted:
        fault(planted)
        found = answer(name, run)
        assert (found.verdict, bool(found.reason)) == (CheckStatus.FAIL, True)
    with monkeypatch.context() as well:
        health(well)
        found = answer(name, run)
        assert (found.verdict, found.reason) == (CheckStatus.PASS, None), found


def test_more_gpus_want_more_cores(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CGROUP", str(tmp_path))
    cgroup("400000 100000", "max")(monkeypatch)
    assert [one.verdict for one in checks.check_limits(context(gpus=4))] == ["PASS", "PASS"]
    assert next(checks.check_limits(context(gpus=8))).verdict == "FAIL"


def test_a_system_that_does_not_tell_its_memory(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(checks, "available_bytes", partial(available_bytes, tmp_path))
    assert answer("memory", checks.check_limits).verdict == CheckStatus.SKIP


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("eth", ["eth0", "eth01"]),
        ("=eth0", ["eth0"]),
        ("^eth", ["ib0"]),
        ("^=eth0", ["eth01", "ib0"]),
        ("^=eth0,ib0", ["eth01"]),
        ("wlan", ["wlan"]),
    ],
)
def test_interfaces_are_chosen_as_nccl_chooses_them(asked: str, found: list[str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(checks, "_up", lambda: ["eth0", "eth01", "ib0"])
    assert checks._of_pattern(asked) == found
