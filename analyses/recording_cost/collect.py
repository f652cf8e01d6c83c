"""Time steps with and without ddpprof, in turn, and the start of its commands.

python analyses/recording_cost/collect.py                              thirty rounds, five minutes or more
python analyses/recording_cost/collect.py --rounds 40 --out FOLDER     leave the committed times alone

Conditions alternate block by block in the same processes, so that a slow minute of the machine hits all of them. A
second block without ddpprof (`bare again`) shows how far from 1 mere noise gets.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, as_json

HERE = Path(__file__).resolve().parent
CASES = ("default buckets", "fifty tiny buckets")
STEPS_PER_BLOCK = 8
SETTLE = 3
"""Number of steps at the start of a block that are not counted: ddpprof attaches in the first."""
CONDITIONS = ("bare", "bare again", "outside", "light")


def block(condition: str, step: object, folder: str, number: int) -> list[float]:
    """Return the seconds of the counted steps of one block. The times are the study's own, not ddpprof's."""
    import contextlib

    import ddpprof

    out = str(Path(folder) / f"run-{number}")
    recording = {
        "outside": lambda: ddpprof.profile(out, skip_first=10**9),
        "light": lambda: ddpprof.profile(out, skip_first=SETTLE - 1, cost_steps=0, profiler=False, steps=10**9),
    }.get(condition, contextlib.nullcontext)
    times = []
    with recording():
        for _ in range(SETTLE + STEPS_PER_BLOCK):
            began = time.perf_counter()
            step()  # type: ignore[operator]
            times.append(time.perf_counter() - began)
    return times[SETTLE:]


def train(rank: int, world_size: int, port: int, case: str, rounds: int, folder: str) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    if case == "default buckets":
        model = DDP(nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]))
        x = torch.randn(32, 1024)
    else:
        model = DDP(
            nn.Sequential(*[layer for _ in range(50) for layer in (nn.Linear(128, 128), nn.ReLU())]), bucket_cap_mb=0.05
        )
        x = torch.randn(512, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(10):
        step()
    means: dict[str, list[float]] = {condition: [] for condition in CONDITIONS}
    order = list(CONDITIONS)
    shuffle = random.Random(1).shuffle  # the same order on both ranks
    for number in range(rounds):
        shuffle(order)
        for condition in order:
            times = block(condition, step, folder, number * len(order) + order.index(condition))
            means[condition].append(statistics.fmean(times))
    if rank == 0:
        buckets = len(model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))
        Path(folder, "result.json").write_text(json.dumps({"buckets": buckets, "means": means}))
    time.sleep(0.2)
    dist.destroy_process_group()


def measure_training(case: str, world_size: int, rounds: int) -> dict[str, object]:
    import torch.multiprocessing as mp

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(world_size, port, case, rounds, folder), nprocs=world_size)
        result = json.loads(Path(folder, "result.json").read_text())
    return {"buckets": result["buckets"], "mean_step_s": result["means"]}


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure_start(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each start, taken in turn."""
    sample = next(Path(__file__).resolve().parents[2].glob("sample_traces/*-2ranks"))
    commands = {
        "bare python": [sys.executable, "-c", ""],
        "--help": [sys.executable, "-m", "ddpprof", "--help"],
        "report": [sys.executable, "-m", "ddpprof", "report", str(sample)],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(seconds(command))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=HERE / RECORDINGS, help="the folder for times.json")
    options = parser.parse_args()
    starts = measure_start(max(3, options.rounds // 2))
    training = {}
    for world_size in (1, 2):
        for case in CASES:
            name = f"{case}, {world_size} rank{'s' if world_size > 1 else ''}"
            print(f"{name}: {options.rounds} rounds", flush=True)
            training[name] = measure_training(case, world_size, options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    content = {"python": platform.python_version(), "cores": os.cpu_count(), "start_s": starts, "training": training}
    (options.out / "times.json").write_text(as_json(content), encoding="utf-8")


if __name__ == "__main__":
    main()
