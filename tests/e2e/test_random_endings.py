"""A job ends as soon as it would without ddpprof, at whatever moment, also where the profiler's stop never returns."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accelerator import STOP_BLOCKS
from accelerator import environment as on_accelerator
from jobs import DDPPROF, TORCHRUN, environment

NUM_MOMENTS = int(os.environ.get("DDPPROF_TEST_MOMENTS", "6"))
LATER_S = 5.0

TRAINING = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.set_num_threads(1)
fails_at = int(sys.argv[1])
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    if step == fails_at and dist.get_rank() == 1:
        raise ValueError("bad batch")
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)
    time.sleep(0.05)
"""
WINDOW = ["--skip-first", "11", "--cost-steps", "4", "--steps", "20"]
FIRST, LAST = 16, 36
"""The profiled steps; the stop that blocks comes after the last."""


def _wait_for(job: subprocess.Popen[str], line: str) -> None:
    assert job.stdout is not None
    assert any(text.startswith(line) for text in job.stdout), f"the job ended without {line!r}"


def _is_over(session: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-s", str(session)], capture_output=True, text=True, check=False)
    return all(state.startswith("Z") for state in listed.stdout.split())


def _time_to_end(job: subprocess.Popen[str], how: str, wait_s: float) -> float:
    """Seconds from the reason to end, wherever that comes from, to the end of the last process."""
    _wait_for(job, f"step {FIRST}")
    if how != "exception":
        time.sleep(wait_s)
        to_all = how == "ctrl-c"
        os.killpg(job.pid, signal.SIGINT) if to_all else job.send_signal(signal.SIGTERM)
    began = time.monotonic()
    job.communicate(timeout=600)
    while not _is_over(job.pid):
        assert time.monotonic() < began + 60, "ranks are still running"
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    (tmp_path / "train.py").write_text(TRAINING)

    def begin(*words: str, **more: str) -> subprocess.Popen[str]:
        job = subprocess.Popen(
            [*words], cwd=tmp_path, env=environment(**more), start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        jobs.append(job)
        return job

    jobs: list[subprocess.Popen[str]] = []
    yield begin
    for job in jobs:
        if not _is_over(job.pid):
            subprocess.run(["pkill", "-KILL", "-s", str(job.pid)], check=False)
        job.communicate()


@pytest.mark.long
@pytest.mark.parametrize("moment", range(NUM_MOMENTS))
def test_a_job_ends_in_time_at_any_moment(
    moment: int, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    chance = random.Random(moment)
    how = ("ctrl-c", "sigterm", "exception")[moment % 3]
    fails_at = str(chance.randrange(FIRST + 1, LAST)) if how == "exception" else "-1"
    wait_s = chance.uniform(0, 2.0)
    ranks = ("--standalone", "--nproc-per-node=2", "train.py", fails_at)
    trace = (*DDPPROF, "trace", "--quiet", "--force", "--out", "run", *WINDOW, *ranks)
    for _ in range(2):  # other work on the machine may hold one of the two jobs up
        recorded = start(*trace, **on_accelerator(STOP_BLOCKS))
        took_s = _time_to_end(recorded, how, wait_s)
        usual_s = _time_to_end(start(*TORCHRUN, *ranks), how, wait_s)
        print(f"moment {moment}: {how}, {took_s:.2f} s, without ddpprof {usual_s:.2f} s")
        if took_s < usual_s + LATER_S:
            break
    else:
        pytest.fail(f"ended {took_s - usual_s:.1f} s later than without ddpprof")
    assert recorded.returncode not in (0, -signal.SIGSEGV)
    for rank in (0, 1):
        steps = [json.loads(line) for line in (tmp_path / "run" / f"rank-{rank}.steps.jsonl").read_text().splitlines()]
        assert sum(step["mode"] == "light" for step in steps) >= 2
        assert json.loads((tmp_path / "run" / f"rank-{rank}.facts.json").read_text())["device"] == "cuda"
