"""Train with communication on the core that computes, and on another one; then without communication.

python analyses/overlap_slowdown/collect.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

HERE = Path(__file__).resolve().parent
ROUNDS = 5
COMPUTE_CORE, OTHER_CORE = 0, 1
NUM_LAYERS, WIDTH, BATCH = 8, 1024, 96
"""A model with 4 MiB of gradients per layer, a bucket each, which take about as long as the layer computes."""


def train(place: str) -> None:
    """Pin rank 0 to a core of its own; rank 1, with next to nothing to compute, stays on the other one.

    gloo's threads keep the core that their process has when they start.
    """
    first = os.environ["RANK"] == "0"
    os.sched_setaffinity(0, {COMPUTE_CORE if first and place == "same" else OTHER_CORE})
    from interleaved import Case, Training, join

    join()
    os.sched_setaffinity(0, {COMPUTE_CORE if first else OTHER_CORE})
    training = Training(Case("mlp", [WIDTH] * NUM_LAYERS, BATCH if first else 1, {"bucket_cap_mb": 4}))
    while True:  # ddpprof ends the job with the last of its steps
        training.step()


def main() -> None:
    begin_recording(HERE)
    window = ["--skip-first", "3", "--cost-steps", "0", "--steps", "4", "--baseline-steps", "4"]
    for number in range(ROUNDS):
        for place in ("same", "other"):
            out = ["--quiet", "--out", f"{RECORDINGS}/{place}-{number}"]
            job = ["--standalone", "--nproc-per-node=2", Path(__file__).name, place]
            subprocess.run([sys.executable, "-m", "ddpprof", "trace", *out, *window, *job], check=True, cwd=HERE)
    for other in (HERE / RECORDINGS).glob("*/rank-1.*"):
        other.unlink()  # it computes next to nothing
    end_recording(HERE, cores=os.cpu_count())


if __name__ == "__main__":
    train(sys.argv[1]) if "RANK" in os.environ else main()
