"""Train with and without overlap, and without communication, on links of five rates in turn. Needs root, for `ip`.

python analyses/overlap/collect.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

if TYPE_CHECKING:
    from interleaved import Training

HERE = Path(__file__).resolve().parent
RATES_GBIT = (0.25, 0.5, 1, 2, 4)
BURST = "128kb"
NUM_LAYERS, WIDTH, BATCH = 8, 512, 1280
"""A model with 1 MiB of gradients per layer."""


def train() -> None:
    import torch.distributed as dist
    from hosts import limit_own_link
    from interleaved import Case, job, record_in_turn

    widths = [WIDTH] * NUM_LAYERS
    cases = [
        Case("overlapped", widths, BATCH, {"bucket_cap_mb": 1}),
        Case("one_bucket", widths, BATCH, {"bucket_cap_mb": 100}),
        Case("silent", widths, BATCH, reduces=False),
    ]
    with job(cases) as (*trainings, silent):
        for number in range(6):
            for rate in RATES_GBIT:
                dist.barrier()
                limit_own_link(f"{round(rate * 1000)}mbit", BURST)
                dist.barrier()
                out = f"{RECORDINGS}/{rate}gbit/{number}"
                record_in_turn(trainings, f"{out}/timed", rounds=1, timed_steps=3, steps=1, profiler=False)
                time_silent(silent, Path(out, "silent.json"))
                if number % 3 == 0:
                    record_in_turn(trainings, f"{out}/profiled", rounds=1, steps=2)


def time_silent(silent: Training, path: Path) -> None:
    """Time rank 0's steps, in ns. ddpprof counts steps by backward passes that reduce gradients, so it sees none."""
    import torch.distributed as dist

    times = [time.perf_counter_ns()]
    for _ in range(4):
        silent.step()
        times.append(time.perf_counter_ns())
    if dist.get_rank() == 0:
        path.write_text(json.dumps([end - start for start, end in pairwise(times)][1:]) + "\n", encoding="utf-8")


def main() -> None:
    from hosts import linked_hosts

    begin_recording(HERE)
    with linked_hosts(2, "1gbit", BURST) as hosts:
        hosts.run_job([sys.executable, Path(__file__).name], HERE)
    for other in (HERE / RECORDINGS).glob("*/*/timed/*/rank-1.*"):
        other.unlink()  # the ranks keep pace: their steps are equally long
    end_recording(HERE, cores=os.cpu_count())


if __name__ == "__main__":
    train() if "RANK" in os.environ else main()
