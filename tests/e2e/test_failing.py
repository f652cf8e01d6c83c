"""Real jobs that fail, after the recorded steps: the report says so first, and which rank was the cause."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import QUICK, Run, script

SLOW = pytest.mark.slow
Report = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize(
    ("how", "first", "says"),
    [
        pytest.param("raise", 1, "The job failed: rank 1 failed after 20 steps: ValueError: bad batch.", id="an-error"),
        pytest.param(
            "kill", 1, "The job failed: rank 1 was killed by SIGKILL after 20 steps.", id="killed", marks=SLOW
        ),
        pytest.param("hang", None, "Rank 1 still ran after 20 steps, and got SIGTERM", id="hangs", marks=SLOW),
        pytest.param("uneven", None, "Rank 1 had finished after 25 steps.", id="fewer-steps", marks=SLOW),
    ],
)
def test_a_job_that_fails_says_so_first(how: str, first: int | None, says: str, ddpprof: Run, report: Report) -> None:
    options = ["--out", "run", *QUICK, "--nproc-per-node=2", "--standalone"]
    done = ddpprof("trace", *options, *script("failing.py", "--how", how), timeout=180)
    assert done.returncode == 1
    printed = done.stdout.strip().splitlines()
    assert printed[0].startswith(f"The job failed: rank {1 if first else 0} ")
    assert any(line.startswith(says) for line in printed[:4]), printed
    failure = report("run")["failure"]
    assert (failure["first"]["rank"] if failure["first"] else None) == first
    assert [end["rank"] for end in failure["others"]] == [0, 1][: 1 if first or how == "uneven" else 2]


@pytest.mark.slow
def test_ctrl_c_and_a_good_end_are_no_failures(ddpprof: Run, report: Report) -> None:
    options = ["--out", "run", *QUICK, "--nproc-per-node=2", "--standalone"]
    done = ddpprof("trace", *options, *script("failing.py", "--how", "not"))
    assert done.returncode == 0, done.stderr
    assert report("run")["failure"] is None
    stopped = ddpprof("trace", "--stop-after", "--force", *options, *script("failing.py", "--how", "not"))
    assert stopped.returncode == 0, stopped.stderr
    assert report("run")["failure"] is None


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group whose processes share 2 GB of memory."""
    group = Path("/sys/fs/cgroup/memory", f"ddpprof-test-{os.getpid()}")
    limit = group / "memory.limit_in_bytes"
    if not limit.parent.parent.is_dir():  # version 2
        group = Path("/sys/fs/cgroup", group.name)
        limit = group / "memory.max"
    try:
        group.mkdir()
        limit.write_text(str(2 * 2**30))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    group.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_rank_that_the_kernel_kills_for_lack_of_memory(
    launcher: str, small_memory: Path, tmp_path: Path, ddpprof: Run
) -> None:
    options = ["--nproc-per-node=2", "--standalone"] if launcher == "torchrun" else []
    job = [*options, *script("failing.py", "--how", "memory", *(["--spawn"] if launcher == "spawn" else []))]
    watch = shlex.join([sys.executable, "-m", "ddpprof", "watch", "--out", "run", *map(str, job)])
    into_group = f"echo $$ > {small_memory}/cgroup.procs; exec {watch}"
    done = subprocess.run(
        ["sh", "-c", into_group], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 1, done.stderr
    said = done.stdout + done.stderr
    assert "The kernel's out-of-memory killer ended a process on that host during the job" in said, said
    asked = ddpprof("diagnose", "run", "--format", "json")
    verdict = json.loads(asked.stdout)
    assert (verdict["fault"], verdict["rank"], verdict["num_oom_kills"]) == ("died", 1, 1)


TWO_MODELS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
DistributedDataParallel(torch.nn.Linear(4, 3 + dist.get_rank()))
"""


@pytest.mark.slow
def test_different_models_are_told_apart_by_name(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_MODELS)
    done = ddpprof("watch", "--out", "run", "--nproc-per-node=2", "--standalone", "train.py")
    assert done.returncode == 1
    assert (
        "ddpprof: rank 1: its model is not the same as on rank 0: weight is 4×4 here and 3×4 there; bias is 4 here and "
        "3 there.\n"
    ) in done.stderr
    assert "ddpprof: nothing was recorded: the job failed before" in done.stderr
