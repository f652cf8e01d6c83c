"""Train with one cap of the bucket size after the other, on two hosts over a link of known rate. Needs root, for `ip`.

python analyses/trailing_communication/collect.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

HERE = Path(__file__).resolve().parent
RATE = "1gbit"
CAPS_MIB = (1, 2, 3, 4, 5, 6, 7, 8)
NUM_LAYERS, WIDTH, BATCH = 8, 512, 1280
"""A model with 1 MiB of gradients per layer, so that a cap is a number of layers."""


def train() -> None:
    from interleaved import Case, job, record_in_turn

    cases = [Case(f"cap-{cap}", [WIDTH] * NUM_LAYERS, BATCH, {"bucket_cap_mb": cap}) for cap in CAPS_MIB]
    with job(cases) as trainings:
        record_in_turn(trainings, RECORDINGS, rounds=3, steps=2)


def main() -> None:
    from hosts import linked_hosts

    begin_recording(HERE)
    with linked_hosts(2, RATE, burst="128kb") as hosts:
        hosts.run_job([sys.executable, Path(__file__).name], HERE)
    end_recording(HERE, cores=os.cpu_count(), link=RATE)


if __name__ == "__main__":
    train() if "RANK" in os.environ else main()
