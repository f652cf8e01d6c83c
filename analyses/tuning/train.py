"""Train one of the models until it is stopped, as a user's script would.

python train.py MODEL
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from interleaved import join, pin
from models import Training

pin()
join()
training = Training(sys.argv[1])
while True:
    training.step()
