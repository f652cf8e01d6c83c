"""A rank ends when its torchrun is killed, and no other process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import children, is_gone, wait_until

from ddpprof.record import launch, torchrun
from ddpprof.record.inject._ddpprof_ends import place
from ddpprof.record.settings import Settings

PARENT = """
import os, subprocess, sys, time
os.environ["DDPPROF_AGENT"] = f"{os.getpid()} {sys.argv[1]}"
subprocess.Popen([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"])
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("is_rank", "where"), [(True, "here"), (False, "here"), (True, "elsewhere")], ids=["rank", "other", "container"]
)
def test_only_ranks_end_with_who_started_them(tmp_path: Path, is_rank: bool, where: str) -> None:
    environment = launch._environment(Settings(str(tmp_path)), None)
    environment |= {"TORCHELASTIC_RUN_ID": "1"} if is_rank else {}
    said = place() if where == "here" else "pid:[1] another-machine"
    agent = subprocess.Popen([sys.executable, "-c", PARENT, said], env=environment, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"begun\n"
    (rank,) = children(agent.pid)
    agent.kill()
    agent.wait()
    agent.stdout.close()
    if is_rank and where == "here":
        wait_until(lambda: is_gone(rank), "ended", 20)
    else:
        assert not is_gone(rank)
        os.kill(rank, 9)


def test_a_rank_that_begins_when_its_torchrun_was_just_killed_ends(tmp_path: Path) -> None:
    """Until its parent waits for it, a killed process keeps its number."""
    agent = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
    environment = launch._environment(Settings(str(tmp_path)), None) | {"TORCHELASTIC_RUN_ID": "1"}
    environment["DDPPROF_AGENT"] = f"{agent.pid} {place()}"
    rank = subprocess.run(
        [sys.executable, "-c", "print('begun')"], env=environment, stdout=subprocess.PIPE, check=False
    )
    assert (rank.returncode, rank.stdout) == (-signal.SIGTERM, b"")
    agent.wait()


@pytest.mark.parametrize("is_rank", [True, False])
def test_only_torchrun_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rank: bool) -> None:
    class ProcessFailure:
        def __post_init__(self) -> None:
            pass

    class Errors:
        pass

    Errors.ProcessFailure = ProcessFailure  # type: ignore[attr-defined]
    monkeypatch.setenv(torchrun.AGENT, "")
    monkeypatch.setenv("DDPPROF_SETTINGS", Settings(str(tmp_path)).to_environment()["DDPPROF_SETTINGS"])
    if is_rank:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    torchrun.listen_to_torchrun(Errors)  # type: ignore[arg-type]
    assert os.environ[torchrun.AGENT] == ("" if is_rank else f"{os.getpid()} {place()}")
