"""Train three models on two and four hosts at four rates of their links with six bucket sizes, and record each once.

python analyses/prediction_error/collect.py [--resume] [--out FOLDER] [--only MODEL-RANKS …]

It needs root, for `ip`, and an hour on a machine that does nothing else; --resume keeps what is there already.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, end_recording

if TYPE_CHECKING:
    from models import Training

HERE = Path(__file__).resolve().parent
NUM_HOSTS = (2, 4)
MODELS = ("mlp", "convnet", "transformer")
GBIT = (0.5, 1, 2, 4)
RECORDED_AT_GBIT = 1
CAPS_MB = (1, 2, 5, 10, None, 100)
"""``None``: DDP's default, 25 with a first bucket of 1. 100: all in one bucket."""
BURST = "128kb"
ROUNDS, SETTLE, TIMED = 6, 1, 3
"""Number of visits of every point; in each, number of steps that do not count yet, and of steps that count."""
UNPROFILED, PROFILED, ALONE = 40, 1, 10
"""Steps of the recorded run. Of ddpprof's defaults, 8 unprofiled steps say less, and 5 profiled ones take much room."""
Point = tuple[float, float | None]
"""Rate of the links, and bucket size."""
RECORDED = None
"""The recorded run, in the place of a point."""
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(4 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Otherwise glibc gives back to the kernel the memory that a step frees at the end of the heap, and gets it again in
the next. If a process has several models, chance decides which one pays: the steps of an LSTM that was the first one
took 10 % longer."""
POINTS, RUN = "points.json", "run"
SIZES = "64K-64M"


def train(name: str, out: Path) -> None:
    """Run one rank of the job that visits every point for one model, in another order in every round."""
    import torch.distributed as dist
    from interleaved import join, leave, pin
    from models import Training

    pin()
    join()
    trainings = {cap: Training(name, bucket_cap_mb=cap) for cap in CAPS_MB}
    for training in trainings.values():
        for _ in range(SETTLE + 1):  # DDP rebuilds its buckets in the second
            training.step()
    visits: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        for point in order_of(number):
            if point is RECORDED:
                set_link(RECORDED_AT_GBIT)
                record(name, str(out / RUN))
            else:
                visits.append({"round": number} | visit(trainings[point[1]], *point))
    if dist.get_rank() == 0:
        points = {
            "model": name,
            "ranks": dist.get_world_size(),
            "gradient_bytes": sum(p.numel() * p.element_size() for p in training.model.parameters()),
            "buckets": {str(cap): buckets_of(training) for cap, training in trainings.items()},
            "visits": visits,
        }
        write(out / POINTS, points)
    leave()


def order_of(number: int) -> list[Point | None]:
    """Return the order in which a round visits the points; it is the same on every rank."""
    points: list[Point | None] = list(product(GBIT, CAPS_MB))
    if number == 0:
        points.append(RECORDED)
    return random.Random(number).sample(points, len(points))


def visit(training: Training, gbit: float, cap: float | None) -> dict[str, Any]:
    """Train a few steps of it on a link of that rate."""
    import torch.distributed as dist

    set_link(gbit)
    for _ in range(SETTLE):
        training.step()
    dist.barrier()
    ends = [time.perf_counter_ns()]
    for _ in range(TIMED):
        training.step()
        ends.append(time.perf_counter_ns())
    return {
        "gbit": gbit,
        "bucket_cap_mb": cap,
        "step_ns": [end - start for start, end in pairwise(ends)],
    }


def record(name: str, out: str) -> None:
    """Record like ``ddpprof trace --baseline-steps``, with a model that begins as it would in a job of its own."""
    import torch.distributed as dist
    from models import Training

    import ddpprof

    with ddpprof.profile(out, cost_steps=UNPROFILED, steps=PROFILED, alone_steps=ALONE, force=True, keep_command=False):
        training = Training(name)
        for _ in range(UNPROFILED + PROFILED + ALONE + 6):  # some more than are recorded
            training.step()
    if dist.get_rank() > 0:  # all copy as much out of their buckets, and traces are most of the recordings
        Path(out, f"rank-{dist.get_rank()}.trace.json.gz").unlink()


def measure_network(out: Path) -> None:
    """Run one rank of the job that does nothing but all-reduce, on links as they are."""
    from interleaved import pin

    import ddpprof

    pin()
    code = ddpprof.main(["netbench", "--sizes", SIZES, "--out", str(out)])
    if code:
        sys.exit(code)


def set_link(gbit: float) -> None:
    import torch.distributed as dist
    from hosts import limit_own_link

    dist.barrier()
    limit_own_link(f"{round(gbit * 1000)}mbit", BURST)
    dist.barrier()


def buckets_of(training: Training) -> list[int]:
    """Return the sizes of the buckets, in the order in which DDP launches them."""
    logged = training.model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return [int(size) for size in str(logged).split(",")]


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def network_file(gbit: float) -> str:
    return f"{gbit:g}gbit.json"


def jobs() -> Iterator[tuple[str, int, float, str]]:
    """Yield each job: its name, number of hosts, first rate of their links, and the file that it leaves."""
    for num_hosts in NUM_HOSTS:
        for gbit in GBIT:
            yield "network", num_hosts, gbit, network_file(gbit)
        for model in MODELS:
            yield model, num_hosts, RECORDED_AT_GBIT, POINTS


def main() -> None:
    from hosts import linked_hosts

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    parser.add_argument("--out", type=Path, default=HERE / RECORDINGS)
    parser.add_argument("--only", nargs="+", metavar="MODEL-RANKS", help="network-2, mlp-2, …")
    arguments = parser.parse_args()
    for name, num_hosts, gbit, made in jobs():
        folder = arguments.out.resolve() / f"{name}-{num_hosts}"
        asked_for = not arguments.only or folder.name in arguments.only
        if not asked_for or (arguments.resume and (folder / made).exists()):
            continue
        shutil.rmtree(folder / RUN, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        with linked_hosts(num_hosts, f"{round(gbit * 1000)}mbit", BURST) as hosts:
            hosts.run_job([sys.executable, Path(__file__).name, name], HERE, MADE=str(folder / made), **KEPT_MEMORY)
        print(f"{folder.name}, {made}: {time.monotonic() - started:.0f} s", flush=True)
    if arguments.out == HERE / RECORDINGS:
        end_recording(HERE, cores=os.cpu_count())


def rank(name: str, made: Path) -> None:
    measure_network(made) if name == "network" else train(name, made.parent)


if __name__ == "__main__":
    rank(sys.argv[1], Path(os.environ["MADE"])) if "RANK" in os.environ else main()
