"""What does ddpprof cost while it records, while it does not, and when it starts?

    make bench                     all of it, a few minutes
    python run.py --rounds 5       quicker, noisier

Every ratio is measured within one run: conditions alternate block by block in the same processes, so that a slow minute
of the machine hits all of them. A second block without ddpprof (`bare again`) shows how far from 1 mere noise gets.
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

STEPS_PER_BLOCK = 8
SETTLE = 3
"""Steps at the start of a block that are not counted: ddpprof attaches in the first."""
TARGETS = {
    ("default buckets", "light"): 1.01,
    ("fifty tiny buckets", "light"): 1.03,
    ("default buckets", "outside"): 1.01,
}
CONDITIONS = ("bare", "bare again", "outside", "light")


def block(condition: str, step: object, folder: str, number: int) -> list[float]:
    """Seconds of the counted steps of one block. The times are the study's own, not ddpprof's."""
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
    bare = result["means"]["bare"]
    ratios = {}
    for condition in CONDITIONS[1:]:
        pairs = [with_it / without for with_it, without in zip(result["means"][condition], bare, strict=True)]
        low, high = bootstrap(pairs)
        ratios[condition] = {"ratio": statistics.median(pairs), "low": low, "high": high}
    return {"step_ms": statistics.median(bare) * 1e3, "buckets": result["buckets"], "rounds": rounds, "ratios": ratios}


def bootstrap(values: list[float]) -> tuple[float, float]:
    """95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure_start(rounds: int) -> dict[str, float]:
    """Start-up, interleaved. Milliseconds."""
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
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


def show(case: str, world_size: int, found: dict[str, object]) -> None:
    print(f"\n{case}, {world_size} rank(s): {found['buckets']} buckets, step {found['step_ms']:.1f} ms")
    for condition, ratio in found["ratios"].items():  # type: ignore[attr-defined]
        target = TARGETS.get((case, condition))
        verdict = f"  target {target}: {'met' if ratio['ratio'] <= target else 'missed'}" if target else ""
        interval = f"[{ratio['low']:.4f}, {ratio['high']:.4f}]"
        print(f"  {condition:<11} {ratio['ratio']:.4f}  95 % {interval}{verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, help="write the numbers to this file, as JSON")
    options = parser.parse_args()
    start = measure_start(max(3, options.rounds // 2))
    print(
        f"start-up: bare python {start['bare python']:.0f} ms, --help +{start['--help'] - start['bare python']:.0f} ms"
    )
    print(f"          ddpprof report on a small run {start['report']:.0f} ms", flush=True)
    training = {}
    for world_size in (1, 2):
        for case in ("default buckets", "fifty tiny buckets"):
            found = measure_training(case, world_size, options.rounds)
            training[f"{case}, {world_size} rank{'s' if world_size > 1 else ''}"] = found
            show(case, world_size, found)
    if options.out:
        import torch

        about = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
        options.out.write_text(json.dumps({"machine": about, "start_ms": start, "training": training}, indent=1) + "\n")


if __name__ == "__main__":
    main()
