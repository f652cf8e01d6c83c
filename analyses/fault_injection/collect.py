"""Plant faults in real jobs, one in each, and keep what ``ddpprof watch`` and ``ddpprof diagnose`` say of them.

python analyses/fault_injection/collect.py                  all faults: some 80 minutes on 2 cores
python analyses/fault_injection/collect.py --tenth          a tenth of them
python analyses/fault_injection/collect.py --only sleep     one fault in all its variants

Ranks train on one machine, or each in a network namespace, whose link is cut for the fault ``link``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hosts import Hosts, NoHosts, linked_hosts
from study import end_recording

sys.path.insert(0, str(Path(__file__).resolve().parent))
from planted_faults import EXPECTED, NO_LINE

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "train.py"
TRIALS = HERE / "recordings" / "trials.json"
STEP = 60
"""step in which every fault happens"""
PATIENCE_S = 120
DDPPROF = [sys.executable, "-m", "ddpprof"]
_OF_THIS_MACHINE = re.compile(r"\S*/\S*|\d+\.\d+\.\d+\.\d+\S*|process \d+|alive: [\d, ]+")


@dataclass(frozen=True)
class Trial:
    fault: str
    ranks: int
    rank: int
    """rank with the fault"""
    launcher: str
    model: str


def all_trials(repeats: int) -> Iterator[Trial]:
    """Yield every fault in a few combinations of launcher, number of ranks and model, the same in each collection."""
    draw = random.Random(0)
    models = ("mlp", "convolutions", "attention")
    for fault in EXPECTED:
        if fault == "link":
            launchers: Sequence[str] = ("namespaces",)
        elif fault == "unused":
            launchers = ("torchrun", "spawn")
        else:
            launchers = ("torchrun", "spawn", "namespaces")
        combinations = list(itertools.product(launchers, models if fault != "unused" else ("mlp",)))
        for number in range(repeats):
            launcher, model = combinations[number % len(combinations)]
            ranks = 2 if launcher == "namespaces" or draw.random() < 0.6 else 4
            yield Trial(fault, ranks, draw.randrange(ranks), launcher, model)


def line_of(fault: str) -> int:
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# FAULT {fault}"))


def run(trial: Trial, folder: Path) -> dict[str, Any]:
    """Run one job with its fault, and return the verdict on it."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    fault = ["--fault", trial.fault, "--rank", trial.rank, "--step", STEP, "--pipe", pipe]
    script = [SCRIPT, "--model", trial.model, *fault]
    watch = [*DDPPROF, "watch", "--kill-after", "1", "--out", folder / "run"]
    if trial.launcher == "namespaces":
        verdict = _on_hosts(trial, [*watch, *script], folder)
    else:
        torchrun = ["--nproc-per-node", trial.ranks] if trial.launcher == "torchrun" else []
        spawn = ["--spawn", trial.ranks] if trial.launcher == "spawn" else []
        job = _start([*watch, *torchrun, *script, *spawn], folder)
        try:
            verdict = _verdict(job, folder)
        finally:
            _end([job], folder)
    return {**vars(trial), **verdict}


def _on_hosts(trial: Trial, command: Sequence[object], folder: Path) -> dict[str, Any]:
    with linked_hosts(2, "1gbit") as hosts:
        ranks = [hosts.start(host, command, folder) for host in range(2)]
        try:
            if trial.fault == "link":
                _wait_for_step(folder)
                _cut(hosts, trial.rank)
            return _verdict(ranks[0], folder)
        finally:
            _end(ranks, folder)


def _cut(hosts: Hosts, host: int) -> None:
    where = ["ip", "netns", "exec", hosts.namespaces[host]]
    subprocess.run([*where, "ip", "link", "set", "eth0", "down"], check=True)


def _wait_for_step(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            content = (folder / "run" / "rank-0.last_step").read_bytes()
            if int.from_bytes(content[:8], "little") > STEP:
                return
        time.sleep(0.1)


def _start(command: Sequence[object], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(random.randrange(20000, 60000))}
    words = [*map(str, command)]
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=DEVNULL, stderr=DEVNULL, text=True)


def _end(jobs: Sequence[subprocess.Popen[str]], folder: Path) -> None:
    """End jobs whose verdict is known; a stopped rank does not end by itself."""
    for facts in (folder / "run").glob("rank-*.facts.json"):
        with suppress(OSError, ValueError):
            os.kill(json.loads(facts.read_bytes())["pid"], signal.SIGKILL)
    for job in jobs:
        try:
            job.wait(20)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


def _verdict(job: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Return the verdict on a job that hangs, or on one that has ended by itself."""
    deadline = time.monotonic() + PATIENCE_S
    hang = folder / "run" / "hang.json"
    while time.monotonic() < deadline and job.poll() is None and not hang.exists():
        time.sleep(0.1)
    if hang.exists():
        return {"verdict": json.loads(hang.read_bytes()), "while": "hanging"}
    diagnose = [*DDPPROF, "diagnose", str(folder / "run"), "--format", "json"]
    said = subprocess.run(diagnose, capture_output=True, text=True, check=False)
    with suppress(ValueError):
        return {"verdict": json.loads(said.stdout), "while": "ended" if job.poll() is not None else "running"}
    return {"verdict": None, "while": said.stderr[-300:]}


def shortened(trial: dict[str, Any]) -> dict[str, Any]:
    """Return what `analyse.py` needs, without names of this machine."""
    verdict = trial["verdict"]
    if verdict is not None:
        place = re.search(r"([^/]+:\d+) in", verdict.get("place") or "")
        kept = {key: verdict.get(key) for key in ("fault", "rank", "step", "activity", "bucket", "detail", "usual_ns")}
        since, at = verdict.get("since_unix_ns"), verdict.get("at_unix_ns")
        verdict = {
            **kept,
            "place": place[1] if place else None,
            "parameters": list(verdict.get("parameters") or ()),
            "waited_ns": at - since if since and at else None,
        }
        if verdict["detail"]:
            verdict["detail"] = _OF_THIS_MACHINE.sub("…", verdict["detail"])[:80]
    return {**trial, "verdict": verdict, "line": None if trial["fault"] in NO_LINE else line_of(trial["fault"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12, help="trials of each fault (%(default)s)")
    parser.add_argument("--tenth", action="store_true", help="one trial of each fault")
    parser.add_argument("--only", choices=EXPECTED)
    parser.add_argument("--hosts", choices=("yes", "no"), help="only the trials on several hosts, or only the others")
    parser.add_argument("--at-once", type=int, default=2, help="jobs at a time (%(default)s)")
    parser.add_argument(
        "--out", type=Path, help="write the trials there; without it, only all of them replace the recording"
    )
    options = parser.parse_args()
    trials = [
        trial for trial in all_trials(1 if options.tenth else options.repeats) if options.only in (None, trial.fault)
    ]
    on_hosts = [trial for trial in trials if trial.launcher == "namespaces" and options.hosts != "no"]
    others = [trial for trial in trials if trial.launcher != "namespaces" and options.hosts != "yes"]
    found: list[dict[str, Any]] = []

    def one(trial: Trial) -> None:
        with tempfile.TemporaryDirectory(prefix="fault-") as folder:
            try:
                found.append(shortened(run(trial, Path(folder))))
            except NoHosts as reason:
                print(f"{trial}: no hosts here: {reason}")
                return
        last = found[-1]["verdict"] or {}
        print(len(found), trial, last.get("fault"), last.get("rank"), last.get("place"), last.get("bucket"), flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(one, others))
    for trial in on_hosts:  # all have the same addresses
        one(trial)
    found.sort(key=lambda trial: (trial["fault"], trial["launcher"], trial["model"], trial["ranks"], trial["rank"]))
    is_whole = not (options.tenth or options.only or options.hosts)
    out = options.out or (TRIALS if is_whole else None)
    if out is not None:
        out.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    if is_whole and options.out is None:
        end_recording(HERE, at_once=options.at_once, step=STEP)


if __name__ == "__main__":
    main()
