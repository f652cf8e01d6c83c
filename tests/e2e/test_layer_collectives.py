"""A real model whose layers communicate, against the times that its script takes of them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from jobs import Run, script


def test_calls_and_time_are_those_that_the_script_measured(ddpprof: Run, tmp_path: Path) -> None:
    job = ("--nproc-per-node", "2", "--out", "run", *script("layer_collectives.py", "."))
    ended = ddpprof("trace", *job)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ddpprof("report", "run", "--format", "json").stdout)
    found = next(one for one in report["findings"] if one["rule"] == "layer-collectives")
    assert found["title"].startswith("Exchange calls 9 collectives per step")
    numbers = found["numbers"]
    assert (numbers["num_forward"], numbers["num_backward"]) == (3, 6), "3 layers"
    spent_ms = [json.loads((tmp_path / f"spent-{rank}.json").read_text()) for rank in (0, 1)]
    of_rank_1 = median(spent_ms[1][step] for step in report["usual_steps"]) * 1e9
    assert abs(numbers["exposed_ns"] - of_rank_1) < 0.25 * of_rank_1 + 2e6, (numbers, of_rank_1)
    for rank, steps in zip(report["ranks"], spent_ms, strict=True):
        exposed = median(step["parts"]["exposed_comm_ns"] for step in rank["steps"])
        waited = median(steps[step["step"]] for step in rank["steps"]) * 1e9
        assert exposed > 0.75 * waited, "an autograd function that waits for its collective does not compute"
