"""Sweep the batch size on one host and on two over a link. `ddpprof sweep` does it; needs root, for `ip`.

python analyses/batch_crossover/collect.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

HERE = Path(__file__).resolve().parent
RATE = "1gbit"
BATCH_SIZES = (256, 512, 1024, 2048, 4096)
"""batch of each process"""
NUM_LAYERS, WIDTH = 8, 512
"""A model with 1 MiB of gradients per layer."""


def train(batch_size: int) -> None:
    from interleaved import Case, job

    with job([Case("mlp", [WIDTH] * NUM_LAYERS, batch_size, {"bucket_cap_mb": 1})]) as (training,):
        for _ in range(1000):  # a trial of the sweep ends by itself
            training.step()


def launch(num_hosts: int, batch_size: int) -> None:
    """Run the sweep's command: the ranks, one per host."""
    from hosts import linked_hosts

    with linked_hosts(num_hosts, RATE, burst="128kb") as hosts:
        hosts.run_job([sys.executable, Path(__file__).name, f"--batch-size={batch_size}"], HERE)


def sweep() -> None:
    begin_recording(HERE)
    sizes = ",".join(map(str, BATCH_SIZES))
    options = [
        "--vary",
        f"--batch-size={sizes}",
        "--nproc",
        "1,2",
        "--rounds",
        "3",
        "--skip-first",
        "4",
        "--timed-steps",
        "6",
    ]
    command = ["python", Path(__file__).name, "--hosts={nproc}"]  # the recordings keep it, so without a path
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    subprocess.run(
        [sys.executable, "-m", "ddpprof", "sweep", *options, "--out", f"{RECORDINGS}/sweep", "--", *command],
        check=True,
        cwd=HERE,
        env={**os.environ, "PATH": path},
    )
    (HERE / RECORDINGS / "sweep" / "plot.png").unlink(missing_ok=True)  # `analyse.py` draws its own
    end_recording(HERE, cores=os.cpu_count(), link=RATE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--batch-size", type=int)
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options.batch_size)
    elif options.hosts:
        launch(options.hosts, options.batch_size)
    else:
        sweep()


if __name__ == "__main__":
    main()
