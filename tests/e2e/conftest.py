"""The command line on real training: every test here starts real ranks."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, TORCHRUN, Run, environment, on_ranks
from remotes import CONVNET

from ddpprof.load.run import load_run
from ddpprof.render.json import render_json
from ddpprof.report.build import build_report

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell does that to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

_OF_GLOO = re.compile(r"^\[Gloo\] .*\n", re.MULTILINE)
"""what torch 2.8 and 2.10 print in every rank, with ddpprof or without it"""


_SLOW = frozenset(
    f"test_{name}"
    for name in (
        "capture", "checkpoints", "compiled_graphs", "data_parallel", "ddp_errors", "diagnose", "doctor",
        "environments", "experiments", "fleet", "frameworks", "harmless", "hooks", "launchers", "layer_collectives",
        "memory", "metrics", "own_topics", "remote", "torch_agreement", "try", "watch", "without_ddp",
    )
)  # fmt: skip
"""modules whose tests take more than a few seconds each"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.stem in _SLOW:
            item.add_marker("slow")


@pytest.fixture
def start(tmp_path: Path) -> Run:
    """Run any command in an empty folder, and wait for it."""

    def run(*command: str | Path, timeout: float = 600, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*map(str, command)],
            cwd=tmp_path,
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        done.stdout = _OF_GLOO.sub("", done.stdout)
        return done

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
def two_ranks(start: Run) -> Run:
    """Run a script on two ranks in that folder, without the command line, where any launcher would do."""
    return lambda *arguments, **options: start(sys.executable, *on_ranks(2, *arguments), **options)


@pytest.fixture
def report(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """The JSON report of a run in that folder, made here: starting the command line each time takes minutes in all."""

    def read(run: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(render_json(build_report(load_run(tmp_path / run))))
        return content

    return read


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """No credentials, keys or summaries of whoever runs the tests."""
    return {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "SSH_AUTH_SOCK": ""}


@pytest.fixture
def of_copy(ddpprof: Run, tmp_path: Path) -> Callable[[str], str]:
    """The JSON report of the sample under another name, read from this machine."""

    def read(name: str) -> str:
        shutil.copytree(CONVNET, tmp_path / name)
        done = ddpprof("report", name, "--format", "json", "--no-cache")
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return read
