"""The command line on real training: every test here starts real ranks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, Run, environment


@pytest.fixture
def ddpprof(tmp_path: Path) -> Run:
    """Run the command line in an empty folder, and wait for it."""

    def run(*arguments: str | Path, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DDPPROF, *map(str, arguments)],
            cwd=tmp_path,
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def report(tmp_path: Path, ddpprof: Run) -> Callable[[str], dict[str, Any]]:
    """The JSON report of a run in that folder."""

    def read(run: str) -> dict[str, Any]:
        shown = ddpprof("report", run, "--format", "json")
        assert shown.returncode == 0, shown.stderr
        content: dict[str, Any] = json.loads(shown.stdout)
        return content

    return read
