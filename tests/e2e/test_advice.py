"""A tenth of the study of advice: what a report advises first does not make the job slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "analyses" / "advice"
EVERY = 10


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_the_first_advice_makes_no_job_slower(tmp_path: Path) -> None:
    out = tmp_path / "cases.json"
    command = [sys.executable, str(STUDY / "collect.py"), "--every", str(EVERY), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr
    cases = json.loads(out.read_text(encoding="utf-8"))
    assert len(cases) >= 6
    assert [one["error"] for one in cases if "error" in one] == []
    tried = {one["case"]: one["tried"]["outcome"] for one in cases if one["tried"] is not None}
    assert tried
    assert {name: outcome for name, outcome in tried.items() if outcome in ("slower", "failed")} == {}
