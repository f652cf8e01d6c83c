"""Real jobs that fail, after the recorded steps: the report says so first, and which rank was the cause."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, QUICK, Run, environment, script
from processes import started, wait_until
from watched_jobs import NEEDS_SHARED_MEMORY, TWO

LONG = pytest.mark.long
Report = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize(
    ("how", "first", "says"),
    [
        pytest.param("raise", 1, "failed after 20 steps: ValueError: bad batch.", id="an-error"),
        pytest.param("kill", 1, "has died with SIGKILL.", id="killed", marks=LONG),
        pytest.param("hang", None, "did not take part in any collective before", id="hangs", marks=LONG),
        pytest.param("uneven", None, "has left the training loop.", id="fewer-steps", marks=LONG),
    ],
)
def test_a_job_that_fails_says_so_first(how: str, first: int | None, says: str, ddpprof: Run, report: Report) -> None:
    options = ["--out", "run", *QUICK, "--nproc-per-node=2", "--standalone"]
    done = ddpprof("trace", *options, *script("failing.py", "--how", how))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    told = [line for line in lines if line.startswith("The job failed")]
    assert len(told) == 1, lines
    assert f": rank 1 {says}" in told[0]
    failure = report("run")["failure"]
    assert (failure["first"]["rank"] if failure["first"] else None) == first
    assert [end["rank"] for end in failure["others"]] == [0, 1][: 1 if first or how == "uneven" else 2]


@pytest.mark.long
def test_ctrl_c_and_a_good_end_are_no_failures(ddpprof: Run, report: Report) -> None:
    options = ["--out", "run", *QUICK, "--nproc-per-node=2", "--standalone"]
    done = ddpprof("trace", *options, *script("failing.py", "--how", "not"))
    assert done.returncode == 0, done.stderr
    assert report("run")["failure"] is None
    stopped = ddpprof("trace", "--stop-after", "--force", *options, *script("failing.py", "--how", "not"))
    assert stopped.returncode == 0, stopped.stderr
    assert report("run")["failure"] is None


@contextmanager
def little_memory(num_bytes: int, *, without_swap: bool = False) -> Iterator[Path]:
    """Yield a control group whose processes share so much memory, and are removed at the end."""
    group = Path("/sys/fs/cgroup/memory", f"ddpprof-test-{os.getpid()}")
    limit = group / "memory.limit_in_bytes"
    if not group.parent.is_dir():  # version 2
        group = Path("/sys/fs/cgroup", group.name)
        limit = group / "memory.max"
    try:
        group.mkdir()
        limit.write_text(str(num_bytes))
        for name in ("memory.memsw.limit_in_bytes", "memory.swap.max"):  # of version 1, with swap, and of version 2
            if without_swap and (group / name).exists():
                (group / name).write_text(str(num_bytes if "memsw" in name else 0))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the end of the processes")
        group.rmdir()


@contextmanager
def swap_file(path: Path, num_mb: int) -> Iterator[None]:
    try:
        for command in (
            ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={num_mb}"],
            ["chmod", "600", str(path)],
            ["/sbin/mkswap", str(path)],
            ["/sbin/swapon", str(path)],
        ):
            subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine gets no swap: {error}")
    try:
        yield
    finally:
        subprocess.run(["/sbin/swapoff", str(path)], check=True)


@NEEDS_SHARED_MEMORY
@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_rank_that_the_kernel_kills_for_lack_of_memory(launcher: str, tmp_path: Path, ddpprof: Run) -> None:
    options = ["--nproc-per-node=2", "--standalone"] if launcher == "torchrun" else []
    job = [*options, *script("failing.py", "--how", "memory", *(["--spawn"] if launcher == "spawn" else []))]
    watch = shlex.join([*DDPPROF, "watch", "--out", "run", *map(str, job)])
    with little_memory(2 * 2**30, without_swap=True) as group:
        done = subprocess.run(
            ["sh", "-c", f"echo $$ > {group}/cgroup.procs; exec {watch}"],
            check=False,
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 1, done.stderr
    said = done.stdout + done.stderr
    assert re.search(r"The kernel's out-of-memory killer killed (a process|\d+ processes) on that host, so ", said), (
        said
    )
    asked = ddpprof("diagnose", "run", "--format", "json")
    verdict = json.loads(asked.stdout)
    assert (verdict["fault"], verdict["rank"]) == ("died", 1)
    assert verdict["num_oom_kills"] > 0


@NEEDS_SHARED_MEMORY
@pytest.mark.long
def test_a_rank_that_swaps_is_named_while_it_does(tmp_path: Path, ddpprof: Run) -> None:
    run, job = tmp_path / "run", script("failing.py", "--how", "swap")
    with little_memory(400 * 2**20) as group, swap_file(tmp_path / "swap", 1024):
        command = [*DDPPROF, "watch", "--out", "run", *TWO, *job]
        with started(*command, cwd=tmp_path, GROUP=str(group)) as watch:
            wait_until((run / "hang.json").exists, "a verdict")
            verdict = json.loads((run / "hang.json").read_text())
            os.kill(watch.pid, signal.SIGTERM)
            _, said = watch.communicate(timeout=600)
    assert (verdict["fault"], verdict["rank"], verdict["step"]) == ("swapping", 1, 20)
    assert "The job hangs at step 20: rank 1 is swapping: it needs more memory than the machine has." in said


TWO_MODELS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
DistributedDataParallel(torch.nn.Linear(4, 3 + dist.get_rank()))
"""


@pytest.mark.long
def test_different_models_are_told_apart_by_name(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_MODELS)
    done = ddpprof("watch", "--out", "run", "--nproc-per-node=2", "--standalone", "train.py")
    assert done.returncode == 1
    assert (
        "ddpprof: rank 1: its model differs from the model of rank 0: weight is 4×4 instead of 3×4; bias is 4 instead "
        "of 3.\n"
    ) in done.stderr
    assert "ddpprof: The job failed at step 0: rank " in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "says", "advice"),
    [
        pytest.param("checkpoint", "Expected to mark a variable ready only once", "use_reentrant=False", id="backward"),
        pytest.param("frozen", "DistributedDataParallel is not needed", "wrap only modules that are", id="constructor"),
    ],
)
def test_a_failure_in_the_first_step_is_explained(how: str, says: str, advice: str, ddpprof: Run) -> None:
    job = ["--nproc-per-node=2", "--standalone", *script("early_failure.py", "--how", how)]
    for command in ("trace", "watch"):
        done = ddpprof(command, "--out", command, *job)
        assert done.returncode == 1
        told = " ".join(done.stderr.split())
        assert says in told
        assert advice in told
        asked = ddpprof("diagnose", command)
        assert asked.returncode == 1
        assert asked.stdout.startswith("The job failed at step 0: rank ")
        assert advice in asked.stdout
