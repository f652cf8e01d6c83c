"""Record jobs that train with and without ``ddpprof.watch`` in turns, within one process.

python analyses/watching_cost/collect.py        35 minutes; nothing else should run

Tiny steps with few and with many buckets show the processor time that watching takes; longer steps on two ranks show
whether they become slower.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import begin_recording, end_recording

HERE = Path(__file__).resolve().parent
JOBS = {
    "2 buckets": (1, "--layers 2 --blocks 40 --settle 1000 --steps 300 --counted-blocks 7"),
    "16 buckets": (1, "--layers 16 --blocks 40 --settle 300 --steps 200"),
    "40 ms": (2, "--layers 4 --blocks 360 --steps 40 --sleep-ms 38"),
}
"""name → number of ranks, and options of ``train.py``; before short steps count, ddpprof learns how long they are"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    folder = begin_recording(HERE)
    for name, (num_ranks, options) in JOBS.items():
        out = folder / f"{name.replace(' ', '-')}.json"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={num_ranks}",
            str(HERE / "train.py"),
            str(out),
            *options.split(),
        ]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(f"{name}: recorded", flush=True)
    end_recording(HERE, jobs=JOBS)


if __name__ == "__main__":
    main()
