"""A job that fails or is ended in the profiled window ends as soon as without ddpprof, even if its GPU is stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import pytest

from ddpprof.child_processes import descendants, kill_descendants
from ddpprof.doctor.checks import Context
from ddpprof.doctor.installation import job_environment, trace_command
from ddpprof.linux_files import stat_of

LATER_S = 10.0
START_S = 300.0
WAIT_S = 90.0
SCRIPT = Path(__file__).parent / "scripts/ending.py"
WINDOW = ("--skip-first", "2", "--cost-steps", "0", "--warmup", "1", "--steps", "1000000")


@pytest.mark.parametrize("busy_s", [0, 40], ids=["", "stuck"])
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM], ids=["exception", "ctrl-c", "sigterm"])
def test_it_ends_as_soon_as_without_ddpprof(number: signal.Signals | None, busy_s: int, context: Context) -> None:
    """Both jobs run at once. A kernel of NCCL whose peer has gone looks like one that takes very long."""
    if busy_s and not context.setup.num_gpus:
        pytest.skip("it needs a GPU")
    if number is None and context.setup.num_ranks < 2:
        pytest.skip("the second rank fails")
    jobs = [Job(context, traced, number, busy_s) for traced in (False, True)]
    try:
        wait(jobs, lambda: all(job.reached for job in jobs), START_S)
        wait(jobs, lambda: all(job.lasted_s is not None for job in jobs), WAIT_S)
    finally:
        kill_descendants()
    without_s, with_s = (job.lasted_s for job in jobs)
    assert with_s is not None
    assert with_s <= (without_s or 0) + LATER_S


class Job:
    """A run of `ending.py` under torchrun, up to the step in which it is to end."""

    def __init__(self, context: Context, traced: bool, number: signal.Signals | None, busy_s: int) -> None:
        self._num_ranks, self._number, self._traced = context.setup.num_ranks, number, traced
        self._folder = context.folder / ("with" if traced else "without")
        self._folder.mkdir()
        ranks = ["--standalone", f"--nproc-per-node={self._num_ranks}"]
        script = [str(SCRIPT), *context.setup.options, f"--pids={self._folder}", f"--busy-s={busy_s}"]
        script += ["--fails"] if number is None else []
        command = [sys.executable, "-m", "torch.distributed.run", *ranks, *script]
        if traced:
            command = trace_command(context.folder / "run", *WINDOW, *ranks, *script)
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, env=job_environment(), cwd=context.folder, stdin=DEVNULL, stdout=log, stderr=STDOUT
            )
        self._began = 0.0
        self.reached = False
        self.lasted_s: float | None = None

    def look(self) -> None:
        """Send the signal once all ranks have reached the step; note when the last process has gone."""
        if not self.reached:
            self.reached = len(list(self._folder.glob("reached-*"))) == self._num_ranks
            ended_early = not self.reached and self._process.poll() is not None
            assert not ended_early, (self._folder / "log").read_text()
            if self.reached:
                self._began = time.monotonic()
                self._send()
        elif self.lasted_s is None and self._process.poll() is not None and not self._ranks_alive():
            self.lasted_s = time.monotonic() - self._began

    def _send(self) -> None:
        """Send the signal; a Ctrl-C goes to every process of a job, which ddpprof does itself."""
        if self._number is None:
            return
        others = descendants(self._process.pid) if self._number is signal.SIGINT and not self._traced else []
        for process in (self._process.pid, *others):
            with suppress(ProcessLookupError):
                os.kill(process, self._number)

    def _ranks_alive(self) -> bool:
        processes = [int(path.read_text(encoding="utf-8")) for path in self._folder.glob("rank-*")]
        found = [stat_of(Path(f"/proc/{one}")) for one in processes]
        return any(one is not None and not one.is_dead for one in found)


def wait(jobs: Sequence[Job], holds: Callable[[], bool], most_s: float) -> None:
    deadline = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {most_s:g} s"
        for job in jobs:
            job.look()
        time.sleep(0.05)
