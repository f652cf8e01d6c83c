"""A process is looked at from outside, while it sleeps and once it has ended; and for what a thread sleeps."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddpprof.model.hang import StartingJob
from ddpprof.model.overdue import Wait
from ddpprof.monitor import processes
from ddpprof.monitor.processes import holder_of_lock, look_at, num_swapped_in, start_line, wait_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system has no /proc")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        pytest.param(StartingJob(12.0, {0: 5}, 2), "no rank is training yet. Try again in a few seconds.", id="short"),
        pytest.param(
            StartingJob(61.0, {0: 5, 1: 6}, 3),
            "no rank has begun to train within 61 s. Started on this host: rank 0 (process 5), rank 1 (process 6). "
            "WORLD_SIZE is 3, so all of these ranks wait for rank 2: start it, on this or another host, or correct "
            "WORLD_SIZE. To find out where a process waits: py-spy dump --pid 5",
            id="missing",
        ),
        pytest.param(
            StartingJob(61.0, {0: 5}, 1),
            "no rank has begun to train within 61 s. Started on this host: rank 0 (process 5). To find out where a "
            "process waits: py-spy dump --pid 5",
            id="complete",
        ),
        pytest.param(
            StartingJob(61.0, {}),
            "no rank has begun to train within 61 s. To find out where a process waits: py-spy dump --pid PID",
            id="unknown",
        ),
    ],
)
def test_a_long_start_in_words(job: StartingJob, said: str) -> None:
    assert start_line(job) == said


def test_of_many_ranks_the_first_are_named() -> None:
    said = start_line(StartingJob(61.0, {rank: 100 + rank for rank in range(10)}, 10))
    assert "rank 7 (process 107) and 2 more. To find" in said


def test_what_the_machine_read_back_from_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "vmstat"
    monkeypatch.setattr(processes, "OF_MACHINE", counters)
    assert num_swapped_in() == 0
    counters.write_text("pgpgin 7\npswpin 12\npswpout 9\n")
    assert num_swapped_in() == 12


def test_a_job_that_trains_in_another_thread_than_the_main_one() -> None:
    """The main thread waits for it, which says nothing of the training."""
    numbers: list[int] = []
    ready, ends = os.pipe()
    thread = threading.Thread(target=lambda: [numbers.append(threading.get_native_id()), os.read(ready, 1)])
    thread.start()
    for _ in range(500):
        found = look_at(os.getpid(), numbers[0]) if numbers else None
        if found is not None and found.wait is Wait.PIPE:
            break
        time.sleep(0.01)
    os.write(ends, b" ")
    thread.join()
    assert found is not None
    assert found.wait is Wait.PIPE


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


LOCKS = """\
1: POSIX  ADVISORY  WRITE 300 fd:01:77 0 EOF
2: FLOCK  ADVISORY  WRITE 100 fd:01:99 0 EOF
2: -> FLOCK  ADVISORY  WRITE 200 fd:01:99 0 EOF
"""


@pytest.mark.parametrize(("process", "holder"), [(200, 100), (100, None), (300, None)])
def test_who_holds_the_lock_of_a_file_for_which_a_process_waits(
    process: int, holder: int | None, tmp_path: Path
) -> None:
    (tmp_path / "locks").write_text(LOCKS)
    assert holder_of_lock(process, tmp_path / "locks") == holder
