"""Traces and jobs of others, which are not part of the project. Tests that need them are skipped without them."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("DDPPROF_SHARED", Path(__file__).parents[3] / "shared"))
TRACES = SHARED / "traces"
REFERENCE = SHARED / "reference"
JOBS = SHARED / "jobs"
