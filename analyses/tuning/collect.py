"""Tune three models on links of three rates; then try every setting that was considered, and let the best meet.

python analyses/tuning/collect.py [--resume] [--only MODEL-GBIT …]

It needs root, for `ip`, and forty minutes on a quiet machine; --resume keeps what is there already.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, end_recording, write_json

if TYPE_CHECKING:
    from hosts import Hosts
    from models import Training

HERE = Path(__file__).resolve().parent
CASES = (("mlp", 1), ("convnet", 2), ("transformer", 4))
"""Model, and rate of the links in Gbit/s."""
BURST = "128kb"
SETTLE, TIMED = 2, 2
"""Steps in a visit: those that do not count, as DDP rebuilds its buckets in the second, and those that do."""
ROUNDS, FASTEST, FASTEST_ROUNDS = 2, 8, 8
"""Visits of every setting; the number of fastest settings, and their further visits, which make each as often timed as
a setting that the tuner times."""
MEETINGS, TIMED_OF_MEETING = 15, 5
"""Rounds in which the tuner's setting, the fastest setting of the visits and DDP's default meet, and steps in each."""
KEPT = ("tried", "best", "num_distinct", "num_steps", "exhaustive_steps", "rounds")
"""keys of the tuner's report"""


def tune(hosts: Hosts, model: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return its report and its settings for DDP: none, those it tried, and the others that it considered."""
    launcher = [sys.executable, str(HERE.parent / "on_hosts.py"), ",".join(hosts.namespaces)]
    ddpprof = [sys.executable, "-m", "ddpprof"]
    job = [*launcher, str(HERE / "train.py"), model]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*ddpprof, "tune", "--out", str(folder), "--", *job], check=True, env=environment, text=True)
    shown = [*ddpprof, "report", str(folder), "--format", "json"]
    report = json.loads(subprocess.run(shown, check=True, capture_output=True, text=True).stdout)
    choice = json.loads((folder / "choice.json").read_text(encoding="utf-8"))
    settings = [one["arguments"] for one in (*choice["candidates"], *choice["untried"])]
    return {name: report[name] for name in KEPT}, settings


def try_all(model: str, made: Path) -> None:
    """Run one rank of the job that visits every setting, and lets the fastest meet the tuner's."""
    import torch.distributed as dist
    from interleaved import join, leave, median_step, pin
    from models import Training

    pin()
    asked = json.loads(made.read_text(encoding="utf-8"))
    settings = asked["settings"]
    join()
    training = Training(model)
    everyone = range(len(settings))
    visits = visit_all(training, settings, everyone, ROUNDS)
    shortlist = sorted(everyone, key=lambda setting: median_step(visits, setting))[:FASTEST]
    visits += visit_all(training, settings, shortlist, FASTEST_ROUNDS)
    fastest = min(shortlist, key=lambda setting: median_step(visits, setting))
    meeting = sorted({0, fastest, asked["tuned"]})
    meetings = visit_all(training, settings, meeting, MEETINGS, TIMED_OF_MEETING)
    if dist.get_rank() == 0:
        write_json(made, {**asked, "fastest": fastest, "visits": visits, "meetings": meetings})
    leave()


def visit_all(
    training: Training, settings: Sequence[dict[str, Any]], which: Sequence[int], rounds: int, timed: int = TIMED
) -> list[dict[str, Any]]:
    """Visit the settings in another order in every round, which is the same on every rank."""
    return [
        {"round": number, "setting": setting, "step_ns": visit(training, settings[setting], timed)}
        for number in range(rounds)
        for setting in random.Random(number).sample(which, len(which))
    ]


def visit(training: Training, arguments: dict[str, Any], timed: int) -> list[int]:
    """Visit one setting; return the steps of the slower rank, in ns."""
    from interleaved import steps_of_slowest

    training.wrap_anew(**arguments)
    for _ in range(SETTLE):
        training.step()
    return steps_of_slowest(training, timed)


def main() -> None:
    from hosts import linked_hosts

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    parser.add_argument("--out", type=Path, default=HERE / RECORDINGS)
    parser.add_argument("--only", nargs="+", metavar="MODEL-GBIT", help="mlp-1, mlp-4, …")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for model, gbit in CASES:
        made = arguments.out.resolve() / f"{model}-{gbit}.json"
        if (arguments.only and made.stem not in arguments.only) or (arguments.resume and made.exists()):
            continue
        began = time.monotonic()
        with linked_hosts(2, f"{gbit}gbit", BURST) as hosts, tempfile.TemporaryDirectory() as folder:
            report, settings = tune(hosts, model, Path(folder) / "tuning")
            tuned = 0 if report["best"] is None else report["best"] + 1
            asked = Path(folder) / "asked.json"
            write_json(asked, {"report": report, "settings": settings, "tuned": tuned})
            tuning_s, began = time.monotonic() - began, time.monotonic()
            hosts.run_job([sys.executable, Path(__file__).name, model], HERE, MADE=str(asked))
            made.write_bytes(asked.read_bytes())
        print(f"{made.name}: tuned in {tuning_s:.0f} s, tried all in {time.monotonic() - began:.0f} s", flush=True)
    if arguments.out == HERE / RECORDINGS:
        end_recording(HERE, cores=os.cpu_count())


if __name__ == "__main__":
    try_all(sys.argv[1], Path(os.environ["MADE"])) if "RANK" in os.environ else main()
