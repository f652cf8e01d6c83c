"""torchrun starts a job again: every attempt is recorded on its own, and the report says what changed."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, QUICK, TORCHRUN, Run, environment, script
from ports import unused_port
from processes import is_gone

from ddpprof.model.pulse import Ended
from ddpprof.monitor.pulse_files import read_pulse
from ddpprof.rundir import attempts_in, pulses_in

Report = Callable[[str], dict[str, Any]]

FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""gloo finds the addresses of ranks that are gone in a store that outlives them, with or without ddpprof"""


def endings(attempt: dict[str, Any]) -> dict[int, tuple[str | None, bool]]:
    return {end["rank"]: (end["ended"], end["is_consequence"]) for end in attempt["ends"]}


@pytest.mark.long
def test_an_error_and_a_kill(tmp_path: Path, ddpprof: Run, report: Report) -> None:
    options = ["--out", "run", *QUICK, "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    done = ddpprof("trace", *options, *script("elastic.py", "raise,kill"), **FRESH_STORE)
    assert done.returncode == 0, done.stderr
    finished = [line.split() for line in done.stdout.splitlines() if line.startswith("done ")]
    assert sorted(words[1:3] for words in finished) == [["0", "2"], ["1", "2"]]
    assert finished[0][3] == finished[1][3]
    assert "ddpprof:" not in done.stderr
    assert "The rest of this report is about attempt 2" in done.stderr
    assert "rank 1 failed: ValueError: bad batch; rank 0 lost contact with the other ranks" in done.stderr
    shown = report("run")
    zero, one, two = shown["attempts"]
    assert [a["restarts"] for a in shown["attempts"]] == [0, 1, 2]
    assert [a["num_steps"] for a in shown["attempts"]] == [7, 7, 7]
    assert endings(zero)[1] == ("failed: ValueError: bad batch", False)
    assert endings(one)[1] == (None, False)
    assert endings(zero)[0][1]
    assert endings(two) == {0: ("finished", False), 1: ("finished", False)}
    assert one["changes"] == [{"name": "bucket_cap_mb", "before": "25.0", "after": "5.0"}]
    assert (zero["changes"], two["changes"]) == ([], [])
    assert one["step_change"]["shift"] == pytest.approx(100e6, rel=0.3)
    assert [a["is_shown"] for a in shown["attempts"]] == [False, False, True]
    assert all(rank["ended"] == "finished" for rank in shown["ranks"])
    first = report("run/attempt-0")
    assert first["attempts"] == []
    assert first["ranks"][1]["ended"] == "failed: ValueError: bad batch"
    assert report("run/attempt-1")["ranks"][1]["ended"] is None


@pytest.mark.long
def test_a_rank_that_ddpprof_wraps_inside_the_job(tmp_path: Path, start: Run, report: Report) -> None:
    """torchrun starts ddpprof itself again; a refusal would end the job."""
    inner = [*DDPPROF, "trace", "--quiet", "--out", "run", *QUICK, *script("elastic.py", "raise")]
    done = start(*TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python", *inner,
                 **FRESH_STORE)  # fmt: skip
    assert done.returncode == 0, done.stderr
    attempts = report("run")["attempts"]
    assert [attempt["restarts"] for attempt in attempts] == [0, 1]
    assert endings(attempts[0])[1] == ("failed: ValueError: bad batch", False)


@pytest.mark.long
def test_the_context_manager(tmp_path: Path, start: Run, report: Report) -> None:
    (tmp_path / "train.py").write_text(
        """
import os, sys, time, torch, torch.distributed as dist
import ddpprof
dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with ddpprof.profile("run", skip_first=2, cost_steps=2, steps=2):
        for step in range(10):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
time.sleep(0.2)
if attempt == 0:
    raise ValueError("bad batch")
"""
    )
    done = start(*TORCHRUN, "--standalone", "--nproc-per-node=1", "--max-restarts=1", "train.py", **FRESH_STORE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("contains an earlier run") == 2, "the second block of a process is no attempt"
    assert [attempt["restarts"] for attempt in report("run")["attempts"]] == [0, 1]


@pytest.mark.long
def test_a_node_goes(tmp_path: Path, report: Report) -> None:
    port = unused_port()
    command = [
        *DDPPROF, "trace", "--quiet", "--out", "run", *QUICK, "--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=3",
        "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
        "--rdzv-conf=last_call_timeout=8,join_timeout=60", *script("elastic.py", "shrink,shrink,shrink"),
    ]  # fmt: skip

    def node(name: str) -> subprocess.Popen[str]:
        """Of which the first one keeps the rendezvous."""
        with (tmp_path / f"{name}.err").open("w") as errors:
            return subprocess.Popen(
                command, cwd=tmp_path, env=environment(**FRESH_STORE), stdout=subprocess.PIPE, stderr=errors, text=True
            )

    first = node("first")
    wait_for_listener(port)
    second = node("second")
    try:
        wait_until_trained(tmp_path / "run")
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=600)
        out, _ = first.communicate(timeout=600)
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert first.returncode == 0, (tmp_path / "first.err").read_text()
    assert out.count("done ") == 2
    attempts = report("run")["attempts"]
    assert (attempts[0]["world_size"], attempts[-1]["world_size"]) == (4, 2)
    assert {"name": "ranks", "before": "4", "after": "2"} in attempts[-1]["changes"]
    assert all(end["ended"] == "finished" for end in attempts[-1]["ends"])
    assert len(report("run")["ranks"]) == 2


def wait_for_listener(port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the first node never opened the rendezvous")


def wait_until_trained(run: Path) -> None:
    """Until all four ranks have written their traces."""
    for _ in range(900):
        if (
            len(list(run.glob("rank-*.trace.json*"))) >= 4
            and json.loads((run / "run.json").read_text())["world_size"] == 4
        ):
            return
        time.sleep(0.1)
    pytest.fail("the four ranks never recorded their steps")


@pytest.mark.long
@pytest.mark.parametrize("num_kills", [3, 10])
def test_kills_in_a_row_lose_no_pulse(num_kills: int, tmp_path: Path, ddpprof: Run) -> None:
    """Every attempt keeps what its ranks did; nothing stays in memory, and no process is left."""
    options = ["--out", "run", "--standalone", "--nproc-per-node=2", f"--max-restarts={num_kills}"]
    done = ddpprof("watch", *options, *script("elastic.py", ",".join(["kill"] * num_kills)), **FRESH_STORE)
    assert done.returncode == 0, done.stderr
    attempts = attempts_in(tmp_path / "run")
    assert sorted(attempts) == list(range(num_kills + 1))
    for number, directory in attempts.items():
        assert isinstance(directory, Path)
        pulses = [read_pulse(directory, rank) for rank in pulses_in(directory)]
        assert len(pulses) == 2
        assert pulses[1].state.step == (24 if number == num_kills else 21)
        assert (pulses[1].state.ended == Ended.FINISHED) is (number == num_kills)
        assert not [one for one in pulses if Path(one.identity.shared).exists()]
        assert all(is_gone(one.identity.pid) for one in pulses)
