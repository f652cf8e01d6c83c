"""Record each of ten small jobs ten times, and note what ddpprof finds in each run.

python analyses/stability/collect.py [--runs N]          a quarter of an hour
python analyses/stability/collect.py --keep FOLDER       leave the recorded runs there
python analyses/stability/collect.py --again FOLDER      only note anew what is found in runs that were kept
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

import ddpprof

HERE = Path(__file__).resolve().parent


def record(runs: Path, number: int) -> None:
    """Record every job once, in random order, as a user would, with ddpprof's defaults."""
    from train import JOBS

    for job in random.Random(number).sample(JOBS, len(JOBS)):
        out = ["--quiet", "--force", "--out", str(runs / f"{job.__name__}-{number}")]
        script = ["--nproc-per-node", "2", str(HERE / "train.py"), job.__name__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "ddpprof", "trace", *out, *script], check=True, env=environment)
    print(f"round {number}", flush=True)


def findings(runs: Path) -> dict[str, list[list[dict[str, Any]]]]:
    """Return for each job and run its findings, in the report's order."""
    from train import JOBS

    return {job.__name__: [_found(path) for path in sorted(runs.glob(f"{job.__name__}-*"))] for job in JOBS}


def _found(run: Path) -> list[dict[str, Any]]:
    report = ddpprof.build_report(ddpprof.load_run(run))
    return [
        {"rule": one.rule, "title": one.title, "gain_ns": one.expected_ns, "is_noise": one.is_noise}
        for one in report.findings
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--again", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    with ExitStack() as stack:
        runs = options.again or options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.again is None:
            for number in range(options.runs):
                record(runs, number)
        found = findings(runs)
    begin_recording(HERE)
    (HERE / RECORDINGS / "findings.json").write_text(_lines(found), encoding="utf-8")
    end_recording(HERE, cores=os.cpu_count(), ranks=2)


def _lines(found: dict[str, list[list[dict[str, Any]]]]) -> str:
    """Return JSON with a line for every run, so that a diff can be read."""
    jobs = [f"{json.dumps(job)}: [\n" + ",\n".join(map(json.dumps, runs)) + "\n]" for job, runs in found.items()]
    return "{\n" + ",\n".join(jobs) + "\n}\n"


if __name__ == "__main__":
    main()
