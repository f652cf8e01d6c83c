"""Measure DDP against its bare module in one process, on three models. `ddpprof overhead` does it.

python analyses/wrapper_overhead/collect.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

HERE = Path(__file__).resolve().parent
DEMO = ["--ranks", "{nproc}", "--steps", "1000"]
JOBS = {
    "convnet": ["-m", "ddpprof.demo.train_convnet", *DEMO],
    "transformer": ["-m", "ddpprof.demo.train_transformer", "--layers", "1", *DEMO],
    "layers": ["train_layers.py"],
}


def main() -> None:
    begin_recording(HERE)
    for name, job in JOBS.items():
        options = ["--rounds", "3", "--blocks", "12", "--timed-steps", "4", "--out", f"{RECORDINGS}/{name}"]
        subprocess.run([sys.executable, "-m", "ddpprof", "overhead", *options, *job], check=True, cwd=HERE)
    end_recording(HERE, cores=os.cpu_count())


if __name__ == "__main__":
    main()
