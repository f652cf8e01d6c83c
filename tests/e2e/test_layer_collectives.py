"""A real model whose layers communicate, against the times that its script takes of them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from jobs import Run, script

from ddpprof.load.run import load_run
from ddpprof.topics.layer_collectives import measure_layer_calls


def test_calls_and_time_are_those_that_the_script_measured(ddpprof: Run, tmp_path: Path) -> None:
    job = ("--nproc-per-node", "2", "--out", "run", *script("layer_collectives.py", "."))
    ended = ddpprof("trace", *job)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ddpprof("report", "run", "--format", "json").stdout)
    found = next(one for one in report["findings"] if one["rule"] == "layer-collectives")
    assert found["title"].startswith("Exchange calls 9 collectives per step")
    numbers = found["numbers"]
    assert (numbers["num_forward"], numbers["num_backward"]) == (3, 6), "3 layers"
    recorded_ns, spent_ns = [], []
    for rank in load_run(tmp_path / "run").ranks:
        spent_s = json.loads((tmp_path / f"spent-{rank.record.rank}.json").read_text())
        assert rank.trace is not None
        for index, step in enumerate(rank.trace.steps):
            calls = measure_layer_calls(rank.trace, index)
            assert calls is not None
            assert (calls.num_forward, calls.num_backward) == (3, 6), "3 layers"
            recorded_ns.append(calls.exposed_ns)
            spent_ns.append(spent_s[step.number] * 1e9)
    shares = [recorded / spent for recorded, spent in zip(recorded_ns, spent_ns, strict=True)]
    assert max(shares) < 1, "the script also times what calls the collectives"
    assert median(shares) > 0.75, "an autograd function that waits for its collective does not compute"
    assert min(recorded_ns) <= numbers["exposed_ns"] <= max(recorded_ns)
