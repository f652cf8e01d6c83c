"""Does a job that fails, or is told to end, end as soon with ddpprof in its profiled window as without it?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ddpprof.child_processes import descendants, start
from ddpprof.doctor.check import CannotCheck, CheckResult, Context, judge
from ddpprof.doctor.training import SCRIPTS, job_environment, trace_command
from ddpprof.linux_files import stat_of

_LATER_S = 10.0
_START_S = 90.0
"""seconds in which a job reaches its step, on a slow machine and beside other checks"""
_WAIT_S = 40.0
"""seconds after which a job counts as hanging"""
_WINDOW = ["--skip-first", "2", "--cost-steps", "0", "--warmup", "1", "--steps", "1000000"]


def check_exception(context: Context) -> Iterator[CheckResult]:
    yield _judge(context, "exception", None)


def check_ctrl_c(context: Context) -> Iterator[CheckResult]:
    yield _judge(context, "ctrl-c", signal.SIGINT)


def check_sigterm(context: Context) -> Iterator[CheckResult]:
    yield _judge(context, "sigterm", signal.SIGTERM)


def _judge(context: Context, name: str, number: signal.Signals | None) -> CheckResult:
    """Run both jobs at once, since the times compared are seconds."""
    jobs = [_Job(context, traced, number) for traced in (False, True)]
    without_s, with_s = _until_all_are_gone(jobs)
    return judge(
        name,
        with_s is not None and with_s <= (without_s or 0) + _LATER_S,
        f"all ranks gone after {_seconds(without_s)}, as without ddpprof, or up to {_LATER_S:g} s later",
        _seconds(with_s),
        "A job that fails while it is recorded does not release its machines. Use --no-profiler, and report this.",
    )


def _seconds(value: float | None) -> str:
    return f"not within {_WAIT_S:g} s" if value is None else f"{value:.1f} s"


class _Job:
    """A run of `ending.py` under torchrun, up to the step in which it is to end."""

    def __init__(self, context: Context, traced: bool, number: signal.Signals | None) -> None:
        self._setup = context.setup
        self._number = number
        self._folder = context.folder / ("with" if traced else "without")
        self._folder.mkdir()
        ranks = ["--standalone", f"--nproc-per-node={context.setup.num_ranks}"]
        script = [str(SCRIPTS / "ending.py"), *context.setup.options, f"--pids={self._folder}"]
        script += ["--fails"] if number is None else []
        command = [sys.executable, "-m", "torch.distributed.run", *ranks, *script]
        if traced:
            command = trace_command(context.folder / "run", *_WINDOW, *ranks, *script)
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            self._process = start(
                command, job_environment(), cwd=context.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._traced = traced
        self._began: float | None = None
        self.lasted_s: float | None = None

    @property
    def has_begun_to_end(self) -> bool:
        return self._began is not None

    def look(self) -> None:
        """Send the signal once all ranks have reached the step; note when the last process has gone."""
        if self.lasted_s is not None:
            return
        if self._began is None:
            if len(list(self._folder.glob("reached-*"))) == self._setup.num_ranks:
                self._began = time.monotonic()
                self._send()
            elif self._process.poll() is not None and self._number is not None:
                raise CannotCheck(f"ending.py ended too early: {_last_line(self._log)}")
            return
        pids = [int(path.read_text(encoding="utf-8")) for path in self._folder.glob("rank-*")]
        if self._process.poll() is not None and not any(map(_is_alive, pids)):
            self.lasted_s = time.monotonic() - self._began

    def _send(self) -> None:
        """Send the signal; a Ctrl-C goes to every process of a job, which ddpprof does itself."""
        if self._number is None:
            return
        others = descendants(self._process.pid) if self._number is signal.SIGINT and not self._traced else []
        for process in (self._process.pid, *others):
            with suppress(ProcessLookupError):
                os.kill(process, self._number)


def _until_all_are_gone(jobs: Sequence[_Job]) -> list[float | None]:
    _wait(lambda: all(job.has_begun_to_end for job in jobs), jobs, _START_S)
    if not all(job.has_begun_to_end for job in jobs):
        raise CannotCheck(f"ending.py did not reach its step within {_START_S:g} s")
    _wait(lambda: all(job.lasted_s is not None for job in jobs), jobs, _WAIT_S)
    return [job.lasted_s for job in jobs]


def _wait(holds: Callable[[], bool], jobs: Sequence[_Job], most_s: float) -> None:
    deadline = time.monotonic() + most_s
    while not holds() and time.monotonic() < deadline:
        for job in jobs:
            job.look()
        time.sleep(0.05)


def _is_alive(process: int) -> bool:
    found = stat_of(Path(f"/proc/{process}"))
    return found is not None and not found.is_dead


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if "rror" in line]
    return lines[-1] if lines else "it gives no reason"
