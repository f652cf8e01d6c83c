"""Watch real jobs of two ranks in which nothing is planted, and keep what ddpprof calls a slowdown.

python analyses/slowdowns/steady.py     some 17 minutes, as root, with nothing else on the machine
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hosts import linked_hosts
from study import RECORDINGS, as_json

from ddpprof import load_run

HERE = Path(__file__).resolve().parent
RATE, BURST = "10gbit", "1mb"
FIRST = ("nice", "-n", "-10")
"""goes before what else the machine does at the time"""
JOBS = {"computing": {"num_steps": 85_000, "sleep": 0.0}, "sleeping": {"num_steps": 25_000, "sleep": 0.2}}
"""jobs by what their steps mostly do; the share is that of the sleep in the jobs with plants"""


def record(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job; return its steps, the slowdowns that ddpprof kept, and what the launcher said while it ran."""
    with tempfile.TemporaryDirectory() as folder, linked_hosts(2, RATE, BURST) as hosts:
        told, now, run = Path(folder) / "told.json", Path(folder) / "now", Path(folder) / "run"
        told.write_text(json.dumps({**job, "plants": []}), encoding="utf-8")
        now.write_text("", encoding="utf-8")
        launcher = [sys.executable, str(HERE.parent / "on_hosts.py"), ",".join(hosts.namespaces)]
        watch = [*FIRST, sys.executable, "-m", "ddpprof", "watch", "--out", str(run), "--", *launcher]
        done = subprocess.run(
            [*watch, str(HERE / "train.py"), str(told), str(now)],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        whole = load_run(run).whole_run
    assert whole is not None
    return {
        "steps": whole.num_steps,
        "step_ms": round(whole.ranks[0].whole.median_ns / 1e6, 1),
        "slowdowns": [[one.first_step, one.last_step, round(one.growth, 3), str(one.cause)] for one in whole.slowdowns],
        "said": [line for line in done.stderr.splitlines() if " step" in line],
    }


def main() -> None:
    found = {}
    for name, job in JOBS.items():
        found[name] = record(job)
        print(name, found[name], flush=True)
    (HERE / RECORDINGS / "steady.json").write_text(as_json(found), encoding="utf-8")


if __name__ == "__main__":
    main()
