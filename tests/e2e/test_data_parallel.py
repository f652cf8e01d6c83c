"""`nn.DataParallel` without a process group: one process is the whole job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import QUICK, Run, outside_checkout, script


def test_it_is_recorded_and_not_changed(start: Run, ddpprof: Run, report: Callable[[str], dict[str, Any]]) -> None:
    bare = start(sys.executable, *script("data_parallel.py"))
    done = ddpprof("trace", "--quiet", "--out", "run", *QUICK, *script("data_parallel.py"))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", bare.stdout)
    shown = report("run")
    (rank,) = shown["ranks"]
    assert (shown["job"]["world_size"], rank["rank"], rank["ended"], shown["missing"]) == (1, 0, "finished", [])
    assert [step["step"] for step in rank["steps"]] == [7, 8, 9]
    assert all(step["parts"]["forward_ns"] > 0 and step["parts"]["optimizer_ns"] > 0 for step in rank["steps"])
    (module,) = shown["data_parallel"]["modules"]
    assert (module["name"], module["num_parameters"], module["parameter_bytes"]) == ("Sequential", 4, 67588)
    assert shown["data_parallel"]["step"]["num_forwards"] == 1
    assert any(finding["rule"].startswith("data-parallel") for finding in shown["findings"])


@pytest.mark.long
def test_the_compiler_does_not_look_into_the_recorder(start: Run, ddpprof: Run, tmp_path: Path) -> None:
    bare = start(sys.executable, *script("data_parallel.py", "--compile"))
    done = ddpprof("trace", "--quiet", "--out", "run", *QUICK, *script("data_parallel.py", "--compile"))
    assert (done.returncode, done.stdout) == (0, bare.stdout)
    assert "Dynamo does not know" not in done.stderr
    assert (tmp_path / "run" / "rank-0.trace.json.gz").exists()


@pytest.mark.long
def test_in_a_with_block(tmp_path: Path, start: Run, report: Callable[[str], dict[str, Any]]) -> None:
    (tmp_path / "inside.py").write_text("""
import ddpprof, torch
model = torch.nn.DataParallel(torch.nn.Linear(8, 8))
with ddpprof.profile("run", skip_first=1, cost_steps=2, profiler=False, steps=3):
    for _ in range(8):
        model(torch.randn(4, 8)).sum().backward()
print(torch.nn.DataParallel.forward.__qualname__)
""")
    done = start(sys.executable, "inside.py")
    assert (done.returncode, outside_checkout(done.stderr), done.stdout) == (0, "", "DataParallel.forward\n")
    (rank,) = report("run")["ranks"]
    assert [step["step"] for step in rank["light_steps"]] == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_baseline_steps_mean_nothing_there(ddpprof: Run, start: Run, tmp_path: Path) -> None:
    bare = start(sys.executable, *script("data_parallel.py"))
    done = ddpprof("trace", "--quiet", "--out", "run", "--baseline-steps", "2", *QUICK, *script("data_parallel.py"))
    assert (done.returncode, done.stdout) == (0, bare.stdout)
    assert "--baseline-steps needs DistributedDataParallel" in done.stderr
    assert "Traceback" not in done.stderr
