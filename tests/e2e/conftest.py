"""The command line on real training: every test here starts real ranks."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, TORCHRUN, Run, environment

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell does that to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def start(tmp_path: Path) -> Run:
    """Run any command in an empty folder, and wait for it."""

    def run(*command: str | Path, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*map(str, command)],
            cwd=tmp_path,
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def ddpprof(start: Run) -> Run:
    """Run the command line in that folder."""
    return lambda *arguments, **options: start(*DDPPROF, *arguments, **options)


@pytest.fixture
def torchrun(start: Run) -> Run:
    """Run a script on two ranks in that folder, without the command line."""
    return lambda *arguments, **options: start(*TORCHRUN, "--standalone", "--nproc-per-node=2", *arguments, **options)


@pytest.fixture
def report(tmp_path: Path, ddpprof: Run) -> Callable[[str], dict[str, Any]]:
    """The JSON report of a run in that folder."""

    def read(run: str) -> dict[str, Any]:
        shown = ddpprof("report", run, "--format", "json")
        assert shown.returncode == 0, shown.stderr
        content: dict[str, Any] = json.loads(shown.stdout)
        return content

    return read
