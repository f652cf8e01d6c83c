"""Commands and scripts with which the end-to-end tests start ddpprof."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parents[1] / "e2e" / "scripts"
DDPPROF = [sys.executable, "-P", "-m", "ddpprof"]
FORKED_RANKS = Path(__file__).with_name("forked_ranks.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
QUICK = ["--skip-first", "2", "--cost-steps", "4", "--steps", "3"]
"""options for a window of ten steps, for scripts of thirty"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, "COLUMNS": "250", "OMP_NUM_THREADS": "1", **more}


def outside_checkout(said: str) -> str:
    """Return what a job said without the path of this checkout, and without the line that tells where its run is."""
    return _OF_RUN.sub("", said).replace(str(CHECKOUT), "")


_OF_RUN = re.compile(r"ddpprof: the run is in (\S+)\. View it with: ddpprof report \1\n")


def script(name: str, *arguments: str) -> list[str]:
    return [str(SCRIPTS / name), *arguments]


def seconds_to_start() -> float:
    """Return a number of seconds after which `ddpprof` handles signals itself. Before, Python may print a traceback."""
    took_s = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([*DDPPROF, "--version"], env=environment(), stdout=subprocess.DEVNULL, check=True)
        took_s.append(time.monotonic() - began)
    return max(took_s)


def on_ranks(num_ranks: int, *training: str | Path) -> list[str]:
    """Return the script, with its arguments, that trains another on so many ranks, where any launcher would do."""
    return [str(FORKED_RANKS), str(num_ranks), *map(str, training)]


def without_torch_aborting(start: Callable[[], subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    """Run a job, again while torch aborts it after its last line: up to five times.

    If Python ends before gloo's threads have let go of the last gradients, torch 2.13 aborts the process
    (pytorch 179291), one short job in ten.
    """
    for _ in range(5):
        done = start()
        if done.returncode == 0 or "terminate called without an active exception" not in done.stderr:
            break
    return done


def fingerprint(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line with the hash of the parameters, which the training prints when it has ended well."""
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("params-sha256"))
    return line


def assert_two_ranks_recorded_four_steps(report: Mapping[str, Any]) -> None:
    """Assert that two ranks have all of the window of ``skip_first=2, cost_steps=4, steps=4``."""
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    for rank in report["ranks"]:
        assert rank["ended"] == "finished"
        assert [step["mode"] for step in rank["light_steps"]] == ["off", "light", "light", "off"]
        assert [step["step"] for step in rank["steps"]] == [7, 8, 9, 10]
        assert all(step["comm_ns"] > 0 and step["compute_ns"] > 0 for step in rank["steps"])
    assert report["buckets"]
