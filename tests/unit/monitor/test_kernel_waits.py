"""For what does a thread sleep? Its folder in ``/proc`` tells."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddpprof.model.overdue import Wait
from ddpprof.monitor.kernel_waits import wait_of


@pytest.mark.parametrize(
    ("syscall", "target", "wait"),
    [
        pytest.param("0 0x0 0x1", "pipe:[7]", Wait.INPUT, id="reads-standard-input"),
        pytest.param("0 0x5 0x1", "/dev/pts/3", Wait.INPUT, id="reads-a-terminal"),
        pytest.param("0 0x5 0x1", "socket:[7]", Wait.NETWORK, id="reads-a-socket"),
        pytest.param("1 0x5 0x1", "pipe:[7]", Wait.PIPE, id="writes-a-pipe"),
        pytest.param("0 0x5 0x1", "/data/part-3", Wait.FILE, id="reads-a-file"),
        pytest.param("45 0x5 0x1", "socket:[7]", Wait.NETWORK, id="receives"),
        pytest.param("202 0x5 0x1", None, Wait.LOCK, id="waits-for-a-lock"),
        pytest.param("61 0x5 0x1", None, Wait.PROCESS, id="waits-for-a-child"),
        pytest.param("230 0x0 0x0", None, Wait.SLEEP, id="sleeps"),
        pytest.param("7 0x5 0x1", None, Wait.EVENTS, id="polls"),
        pytest.param("running", None, None, id="runs"),
    ],
)
def test_by_its_system_call(
    syscall: str, target: str | None, wait: Wait | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    (tmp_path / "syscall").write_text(f"{syscall}\n")
    (tmp_path / "fd").mkdir()
    if target is not None:
        (tmp_path / "fd" / str(int(syscall.split()[1], 16))).symlink_to(target)
    assert wait_of(tmp_path) is wait


@pytest.mark.parametrize(
    ("place", "wait"),
    [
        ("n_tty_read", Wait.INPUT),
        ("tcp_recvmsg", Wait.NETWORK),
        ("wait_for_partner", Wait.PIPE),
        ("futex_wait_queue", Wait.LOCK),
        ("hrtimer_nanosleep", Wait.SLEEP),
        ("do_sys_poll", Wait.EVENTS),
        ("0", None),
    ],
)
def test_by_the_function_of_the_kernel_where_the_call_is_hidden(place: str, wait: Wait | None, tmp_path: Path) -> None:
    (tmp_path / "wchan").write_text(place)
    assert wait_of(tmp_path) is wait
