"""Train one of the models for as long as it is let, as a user's script would.

python train.py MODEL
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from interleaved import join
from models import Training

os.sched_setaffinity(0, {int(os.environ["RANK"]) % (os.cpu_count() or 1)})
join()
training = Training(sys.argv[1])
while True:
    training.step()
