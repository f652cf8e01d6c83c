"""Plant slowdowns in real jobs of two ranks, which have hosts of their own with a link of 700 Mbit/s.

python analyses/slowdowns/collect.py                  all jobs: some 25 minutes, as root
python analyses/slowdowns/collect.py --only JOB       that job anew, and the others as they are

A job has one plant after another, with normal steps between them. Its script learns from a file when to be slow;
ddpprof learns nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
from hosts import linked_hosts
from study import RECORDINGS, as_json

from ddpprof.monitor.pulse_files import read_pulse

HERE = Path(__file__).resolve().parent
RATE, BURST = "700mbit", "64kb"
NUM_STEPS, USUAL_MS = 2000, 45.0
FIRST_PLANT = 150
NORMAL_BETWEEN = (140, 160)
COLUMNS = (
    "length_ns",
    "data_ns",
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "wait_ns",
    "first_gradient_ns",
)
SAMPLED = ("at_ns", "memory_bytes", "throttled_ns", "queued_ns", "major_faults", "cpu_ns")
UNIT_NS, NOT_KNOWN = 10_000, 65_535
"""times are kept in units of 10 µs, with 16 bits"""
SLEEPS = ("data", "forward", "backward", "optimizer", "other")
HOGS = 3
FIRST = ("nice", "-n", "-10")
"""goes before what else the machine does at the time"""
GROUP = Path("/sys/fs/cgroup/cpu/ddpprof-slowdowns")
QUOTA_US, PERIOD_US = 7_000, 20_000
ONE_RANK = tuple(("one", kind) for kind in SLEEPS)
LINK_AND_LOADING = (("link", "link"), ("all", "data"), ("link", "link"), ("one", "data"))
EVERYBODY = (("all", "forward"), ("all", "other"), ("all", "backward"), ("link", "link"))
OUTSIDE = (("outside", "neighbour"), ("outside", "throttled"))
JOBS = {
    **{f"one rank {number}": ONE_RANK for number in range(1, 5)},
    **{f"link and loading {number}": LINK_AND_LOADING for number in range(1, 4)},
    **{f"everybody {number}": EVERYBODY for number in range(1, 4)},
    **{f"outside {number}": OUTSIDE for number in range(1, 5)},
}
"""what is planted, in turns, until the job's steps are used up; the recorder keeps the last 2048 of them"""


def plants_of(job: str, seed: int) -> list[dict[str, Any]]:
    """Return the plants of a job: kinds as in `JOBS`, sizes from 10 % on, ranks and lengths by chance."""
    draw, step, plants = random.Random(seed), FIRST_PLANT, list[dict[str, Any]]()
    for whose, kind in cycle(JOBS[job]):
        size = draw.choice((0.12, 0.15, 0.2, 0.3, 0.5))
        plant: dict[str, Any] = {"first_step": step, "num_steps": draw.randint(50, 65), "kind": kind, "size": size}
        plant["rank"] = draw.randrange(2) if whose == "one" else None
        plant["extra_ms"] = round(size * USUAL_MS, 1)
        if kind == "link":
            plant["rate"] = f"{draw.choice((250, 300, 350))}mbit"
        if whose == "outside":
            plant["num_steps"] = 200
        if step + plant["num_steps"] > NUM_STEPS:
            break
        plants.append(plant)
        step += plant["num_steps"] + draw.randint(*NORMAL_BETWEEN)
    return plants


@contextmanager
def hogs() -> Iterator[None]:
    """Keep processors busy."""
    busy = [subprocess.Popen([*FIRST, sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


@contextmanager
def throttled(processes: list[int]) -> Iterator[None]:
    """Give these processes less of the processors than they need, by a control group of version 1."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (GROUP / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
    for process in processes:
        (GROUP / "cgroup.procs").write_text(str(process))
    try:
        yield
    finally:
        for process in processes:
            with suppress(OSError):
                (GROUP.parent / "cgroup.procs").write_text(str(process))
        time.sleep(0.05)
        with suppress(OSError):
            GROUP.rmdir()


def act(now: Path, run: Path, ended: threading.Event) -> None:
    """Do from outside what the job asks for, until it ends."""
    while not ended.wait(0.02):
        kind = now.read_text(encoding="utf-8")
        if not kind:
            continue
        ranks = [read_pulse(run, rank).identity.pid for rank in range(2)]
        with hogs() if kind == "neighbour" else throttled(ranks):
            while now.read_text(encoding="utf-8") == kind and not ended.wait(0.02):
                pass


def record(job: str, seed: int) -> None:
    """Run a job, and keep what ddpprof noted of its steps."""
    plants = plants_of(job, seed)
    with tempfile.TemporaryDirectory() as folder, linked_hosts(2, RATE, BURST) as hosts:
        told, now, run = Path(folder) / "told.json", Path(folder) / "now", Path(folder) / "run"
        told.write_text(json.dumps({"num_steps": NUM_STEPS, "sleep": 1, "plants": plants}), encoding="utf-8")
        now.write_text("", encoding="utf-8")
        options = ["--no-profiler", "--skip-first", "3", "--cost-steps", "0", "--steps", "5", "--quiet"]
        launcher = [sys.executable, str(HERE.parent / "on_hosts.py"), ",".join(hosts.namespaces)]
        trace = [*FIRST, sys.executable, "-m", "ddpprof", "trace", "--out", str(run), *options, "--", *launcher]
        ended = threading.Event()
        outside = threading.Thread(target=act, args=(now, run, ended))
        outside.start()
        try:
            subprocess.run([*trace, str(HERE / "train.py"), str(told), str(now)], check=True, env=_environment())
        finally:
            ended.set()
            outside.join()
        keep(job, run, plants)


def keep(job: str, run: Path, plants: list[dict[str, Any]]) -> None:
    kept: dict[str, Any] = {}
    for rank in range(2):
        pulse = read_pulse(run, rank)
        begin_ns = int(pulse.steps.start_ns[0])
        kept[f"{rank}.begin"] = np.array([begin_ns, int(pulse.steps.number[0])])
        kept[f"{rank}.flags"] = pulse.steps.flags.astype(np.uint8)
        for name in COLUMNS:
            values = getattr(pulse.steps, name)
            kept[f"{rank}.{name}"] = np.where(
                values < 0, NOT_KNOWN, np.minimum(values // UNIT_NS, NOT_KNOWN - 1)
            ).astype(np.uint16)
        kept[f"{rank}.samples"] = np.column_stack([getattr(pulse.samples, name) for name in SAMPLED])
    name = job.replace(" ", "_")
    np.savez_compressed(HERE / RECORDINGS / f"{name}.npz", **kept)
    (HERE / RECORDINGS / f"{name}.json").write_text(
        "[\n" + ",\n".join(json.dumps(plant) for plant in plants) + "\n]\n", encoding="utf-8"
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=JOBS, help="record this job")
    options = parser.parse_args()
    (HERE / RECORDINGS).mkdir(exist_ok=True)
    for seed, job in enumerate(JOBS, 10):
        if options.only in (None, job):
            began = time.monotonic()
            record(job, seed)
            print(f"{job}: {time.monotonic() - began:.0f} s", flush=True)
    machine = {"python": sys.version.split()[0], "cores": os.cpu_count(), "ranks": 2, "link": RATE}
    (HERE / RECORDINGS / "machine.json").write_text(as_json(machine), encoding="utf-8")


if __name__ == "__main__":
    main()
