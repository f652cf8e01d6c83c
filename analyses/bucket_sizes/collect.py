"""Train one model with buckets of seven sizes in turn, on two hosts over a link of known rate. Needs root, for `ip`.

python analyses/bucket_sizes/collect.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

HERE = Path(__file__).resolve().parent
RATE = "1gbit"
CAPS_MIB = (0.125, 0.25, 0.5, 1, 2, 8, None)
"""``None``: DDP's default, 1 MiB for the first bucket and 25 MiB for the others."""
WIDTHS, BATCH = (256, 128) * 18, 1536
"""A model with 128 KiB of gradients per layer (64 KiB in the last), 4.4 MiB in all."""


def train() -> None:
    from interleaved import Case, job, record_in_turn

    cases = [Case(f"cap-{cap or 'default'}", WIDTHS, BATCH, {"bucket_cap_mb": cap} if cap else {}) for cap in CAPS_MIB]
    with job(cases) as trainings:
        record_in_turn(trainings, f"{RECORDINGS}/timed", rounds=12, timed_steps=4, steps=1, profiler=False)
        record_in_turn(trainings, f"{RECORDINGS}/profiled", rounds=1, steps=2)


def main() -> None:
    from hosts import linked_hosts

    begin_recording(HERE)
    with linked_hosts(2, RATE, burst="128kb") as hosts:
        hosts.run_job([sys.executable, Path(__file__).name], HERE)
    for other in (HERE / RECORDINGS / "timed").glob("*/rank-1.*"):
        other.unlink()  # the ranks keep pace: their steps are equally long
    end_recording(HERE, cores=os.cpu_count(), link=RATE)


if __name__ == "__main__":
    train() if "RANK" in os.environ else main()
